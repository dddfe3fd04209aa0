"""Sharding a program that is cut: each stage over its own axes, in the placements in which values come to it.

A value leaves a stage in the placement that it has there after the last op; the stage that takes it reshards it. On
another mesh it arrives in that placement along the axes that both have, and along others as rows are divided there.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import fx

from trainyard.job.lower.axes import ShardedStage, StageMesh, leaving, placed, shard_stage
from trainyard.job.lower.pieces import Layout
from trainyard.job.lower.shard import names_of
from trainyard.program.nodes import add_op, add_placeholder
from trainyard.program.orders import order_mark
from trainyard.program.placement import REPLICATE, Placement, Shard
from trainyard.program.program import Program, tensors_of
from trainyard.program.propagate import Axis
from trainyard.program.random.positional import POSITIONAL, SALT

ROWS = Shard(0)

Border = dict[str, dict[str, Placement]]
"""Placements in which values cross from stage to stage, by axis and address."""


def shard_stages(programs: Sequence[Program], meshes: Sequence[StageMesh]) -> list[ShardedStage]:
    """Cut the program of every stage over the axes of its mesh; of stages that are equal, only the first.

    Afterwards each input of a stage is named after the node that sends it.
    """
    if len(programs) == 1 or not any(mesh.axes for mesh in meshes):
        return _joined([shard_stage(*stage) for stage in zip(programs, meshes, strict=True)])
    stages = [_Stage(*stage) for stage in zip(programs, meshes, strict=True)]
    border: Border = {axis.name: {} for mesh in meshes for axis in mesh.axes}
    known: dict[Hashable, tuple[_Stage, ShardedStage]] = {}
    # Values go up the stages, and gradients come down; in which placements these come is a guess at first.
    for _ in range(2 + len(stages)):
        before = {axis: dict(placements) for axis, placements in border.items()}
        for stage in (*stages, *stages[-2::-1]):
            stage.shard(border, known)
        if border == before:
            return _joined([stage.result() for stage in stages])
    raise RuntimeError("how values cross from stage to stage does not settle")


class _Stage:
    """A stage, and the equal one that was sharded in its place."""

    def __init__(self, program: Program, mesh: StageMesh) -> None:
        self.program, self.mesh = program, mesh
        self.structure = _structure(program, mesh)
        self.first: _Stage = self
        self.sharded: ShardedStage | None = None

    def shard(self, border: Border, known: dict[Hashable, tuple[_Stage, ShardedStage]]) -> None:
        """Take what the border says of values that arrive, and say of those that leave how they do."""
        arriving = self._dividing({a.name: self._arriving(a, border[a.name]) for a in self.mesh.axes})
        key = (self.structure, tuple(tuple(found.values()) for found in arriving.values()))
        if key not in known:
            known[key] = self, shard_stage(self.program, self.mesh, arriving)
        self.first, self.sharded = known[key]
        for output, placements in zip(self.program.outputs, self.sharded.outputs, strict=True):
            if output.kind == "value":
                for axis_name, placement in placements.items():
                    border[axis_name][output.path] = placement

    def _arriving(self, axis: Axis, border: Mapping[str, Placement]) -> dict[str, Placement]:
        """Return the placements of incoming values. Those of gradients are guessed: as a value of the same shape, else
        by rows."""
        shapes = {i.path: self._shape(i.node) for i in self.program.inputs if i.kind == "value"}
        like = {shape: border[name] for name, shape in shapes.items() if name in border}
        batch = [self.mesh.wanted[axis.name].get(i.path) for i in self.program.inputs if i.kind == "batch"]
        num_ranks = math.prod(axis.size for axis in self.mesh.axes)

        def guess(shape: tuple[int, ...]) -> Placement:
            return ROWS if ROWS in batch and shape and shape[0] % num_ranks == 0 else REPLICATE

        return {name: border.get(name) or like.get(shape) or guess(shape) for name, shape in shapes.items()}

    def _dividing(self, arriving: Border) -> Border:
        """Values come whole whose placements, made for another mesh, do not divide them here."""
        for entry in self.program.inputs:
            if entry.kind == "value":
                placements = {axis: found[entry.path] for axis, found in arriving.items()}
                if not Layout.of(self.mesh.mesh, placements).divides(self._shape(entry.node)):
                    for found in arriving.values():
                        found[entry.path] = REPLICATE
        return arriving

    def _shape(self, name: str) -> tuple[int, ...]:
        return tuple(self.program.nodes[name].meta["val"].shape)

    def result(self) -> ShardedStage:
        """The stage, sharded; that of an equal one, in the names of this one."""
        assert self.sharded is not None
        if self.first is self:
            return self.sharded
        pairs = zip(self.first.program.inputs, self.program.inputs, strict=True)
        paths = {a.path: b.path for a, b in pairs if a.kind == "value"}
        inputs = {
            axis: {paths[path]: p for path, p in found.items()} for axis, found in self.sharded.inputs.items()
        }
        program = _renamed(self.sharded.program, self.first.program, self.program)
        own = self.mesh
        return replace(self.sharded, program=program, mesh=own.mesh, rank=own.rank, inputs=inputs)


def _structure(program: Program, mesh: StageMesh) -> tuple[Hashable, ...]:
    """All of a stage on which it depends how it is sharded: no names, and of draws and layers only which are the same."""
    number = {node: i for i, node in enumerate(program.graph.nodes)}
    salts: dict[Any, int] = {}
    layers: dict[str, int] = {}

    def plain(value: Any) -> Hashable:
        if isinstance(value, fx.Node):
            return number[value]
        if isinstance(value, list | tuple):
            return tuple(map(plain, value))
        # True is not 1 and -0.0 not 0.0, though they are equal.
        return type(value), value.hex() if isinstance(value, float) else value

    def described(node: fx.Node) -> Hashable:
        args = [plain(a) for a in node.args]
        if node.target in POSITIONAL:
            args[SALT] = salts.setdefault(node.args[SALT], len(salts))
        return (
            node.target if node.op == "call_function" else node.op,
            tuple(args),
            tuple((name, plain(a)) for name, a in node.kwargs.items()),
            tuple((t.shape, t.stride(), t.dtype) for t in tensors_of(node)),
            node.meta.get("phase"),
            "part_of" in node.meta,
            order_mark(node),
            layers.setdefault(node.meta.get("layer", ""), len(layers)),
        )

    def grad(path: str) -> tuple[Hashable, ...]:
        return paths.get(path), *(wanted.get(path) for wanted in mesh.wanted.values())

    paths = {i.path: n for n, i in enumerate(program.inputs)}
    known = placed(program)
    return (
        tuple(map(described, program.graph.nodes)),
        tuple((i.kind, i.whole) for i in program.inputs),
        tuple((o.kind, *grad(o.path)) if o.kind == "grad" else o.kind for o in program.outputs),
        tuple((a, known[n], p) for a, wanted in mesh.wanted.items() for n, p in wanted.items() if n in known),
        (mesh.axes, mesh.mesh.parts_held(mesh.rank), mesh.summed_over, mesh.sums_before_sending),
        # A choice may be of what sharding makes, which has no number here.
        None if mesh.choices is None else next(iter(program.addresses.nodes), ""),
    )


def _renamed(sharded: Program, first: Program, own: Program) -> Program:
    """Rename the lowering of the first of two equal stages for the other."""
    pairs = list(zip(first.graph.nodes, own.graph.nodes, strict=True))
    names: dict[str, str] = {a.meta["part_of"]: b.meta["part_of"] for a, b in pairs if "part_of" in a.meta}
    names |= {a.name: b.name for a, b in pairs}
    places = {key: {a.meta.get(key): b.meta.get(key) for a, b in pairs} for key in ("layer", "position")}
    addresses: dict[str, str] = {
        a.meta["address"]: b.meta["address"] for a, b in pairs if "address" in a.meta
    }
    salts = {a.args[SALT]: b.args[SALT] for a, b in pairs if a.target in POSITIONAL}

    def renamed(name: str, origin: str) -> str:
        if name not in names and name.startswith(origin):
            return names.get(origin, origin) + name[len(origin) :]
        return names.get(name, name)

    def addressed(address: str, layer: str) -> str:
        op, slash, part = address.partition("/")
        return (
            addresses[op] + slash + part
            if op in addresses
            else places["layer"][layer] + address[len(layer) :]
        )

    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for node in sharded.graph.nodes:
        origins = names_of(node)
        name = renamed(node.name, origins[-1])
        args, kwargs = fx.map_arg((node.args, node.kwargs), copies.__getitem__)
        if node.target in POSITIONAL:
            args = (*args[:SALT], salts[args[SALT]], *args[SALT + 1 :])
        if node.op == "placeholder":
            copies[node] = add_placeholder(graph, name)
        elif node.op == "call_function":
            copies[node] = add_op(graph, node.target, args, kwargs, name)
        else:
            graph.output(args[0])
            continue
        meta = copies[node].meta = dict(node.meta)
        if "address" in meta:
            meta["address"] = addressed(meta["address"], meta["layer"])
        meta |= {key: known[meta[key]] for key, known in places.items() if key in meta}
        if "moved_from" in meta:
            meta["moved_from"] = tuple(renamed(origin, origins[-1]) for origin in origins)
        if "part_of" in meta:
            meta["part_of"] = names[meta["part_of"]]
    return replace(own, graph=graph)


def _joined(stages: Sequence[ShardedStage]) -> list[ShardedStage]:
    """Let every stage know what arrives by the name of the node with which it leaves another stage."""
    left = {output.path: node.name for stage in stages for output, node in leaving(stage.program)}
    joined = []
    for stage in stages:
        inputs = tuple(
            replace(i, path=left[i.path]) if i.kind == "value" else i for i in stage.program.inputs
        )
        arriving = {
            axis: {left[path]: placement for path, placement in found.items()}
            for axis, found in stage.inputs.items()
        }
        joined.append(replace(stage, program=replace(stage.program, inputs=inputs), inputs=arriving))
    return joined
