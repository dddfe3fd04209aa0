"""The mesh axes of a stage: its program as one rank of them runs it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType

from torch import fx

from trainyard.job.lower.shard import applied_to, emit, shard
from trainyard.job.plan import Mesh, Plan, PlanError, Stage
from trainyard.program.addresses import AddressError
from trainyard.program.choices import ChoiceError, named_in
from trainyard.program.placement import PARTIAL, REPLICATE, OpChoice, Partial, Placement, Shard
from trainyard.program.program import Output, Program, output_args
from trainyard.program.propagate import Assignment, Axis

Placements = Mapping[str, Mapping[str, Placement]]
"""By mesh axis, and by path of an input or address of an op."""


@dataclass(frozen=True, eq=False)
class StageMesh:
    """The ranks of a stage, and what a plan says of how its tensors lie on them.

    Attributes
    ----------
    mesh : of the ranks.
    rank : of the mesh, for which is written; others run the same, unless they have unequal shares.
    wanted : placements that are not left to propagation. Those of other stages' nodes do not matter.
    summed_over : names of the axes along which ranks keep terms of gradients.
    choices : how ops run, by axis, and by address or pattern; those of other stages' ops do not matter. Where there are
        any, or are to be told, each stage is sharded by itself.
    sums_before_sending : whether what other stages take is never left as terms of a sum: on another mesh there are not
        as many ranks to hold them.
    """

    mesh: Mesh
    rank: int
    wanted: Placements
    summed_over: tuple[str, ...]
    choices: Mapping[str, Mapping[str, OpChoice]] | None = None
    sums_before_sending: bool = False

    @cached_property
    def axes(self) -> tuple[Axis, ...]:
        """Axes of more than one rank, in the order in which they cut."""
        unequal = dict(self.mesh.unequal)
        return tuple(
            Axis(name, self.mesh.num_parts(name), is_uneven=name in unequal)
            for name, _ in self.mesh.nontrivial
        )


@dataclass(frozen=True, eq=False)
class ShardedStage:
    """The program of a stage as every rank of it runs it.

    Attributes
    ----------
    mesh, rank : as in the stage's mesh.
    inputs : placements of the values that come from other stages, by axis and path.
    outputs : of each output, in the order of ``program.outputs``, its placement along every axis.
    assignments : what was decided along each axis; of equal stages, that of the first.
    """

    program: Program
    mesh: Mesh
    rank: int
    inputs: Placements
    outputs: tuple[Mapping[str, Placement], ...]
    assignments: Mapping[str, Assignment]


def meshes_of(
    program: Program, plan: Plan, ranks: Mapping[Mesh, int] = MappingProxyType({})
) -> list[StageMesh]:
    """The mesh of every stage of a program.

    Parameters
    ----------
    ranks : of meshes, for which is written; by default those that hold most.

    Raises
    ------
    PlanError
        If ranks would hold something else than the model has.
    """
    kinds = {(stage.mesh, stage.rows): stage for stage in plan.stages}
    known = {
        kind: _mesh_of(program, plan, stage, ranks.get(stage.mesh, stage.mesh.fullest_rank))
        for kind, stage in kinds.items()
    }
    return [known[stage.mesh, stage.rows] for stage in plan.stages]


def _mesh_of(program: Program, plan: Plan, stage: Stage, rank: int) -> StageMesh:
    rows = [i.path for i in program.inputs if i.kind == "batch" and not i.whole]
    wanted: dict[str, dict[str, Placement]] = {}
    for name, _ in stage.mesh.sizes:
        divided = dict.fromkeys(rows, Shard(0)) if name in stage.rows else {}
        wanted[name] = {**divided, **plan.placed_along(name)}
        _check_placements(program, name, wanted[name], name in dict(stage.mesh.unequal))
    axes = [name for name, _ in stage.mesh.nontrivial]
    choices = {axis: plan.chosen_along(axis) for axis in axes} if plan.choices else None
    are_unlike = len({other.mesh for other in plan.stages}) > 1
    return StageMesh(stage.mesh, rank, wanted, plan.state.summed_over, choices, are_unlike)


def shard_whole(program: Program, plan: Plan) -> Program:
    """Return the graph of a rank for a program that is one stage."""
    return shard_stage(program, meshes_of(program, plan)[0]).program


def shard_stage(program: Program, mesh: StageMesh, arriving: Placements | None = None) -> ShardedStage:
    """Cut the program of a stage over the axes of its mesh, one after the other.

    Ranks of unequal shares run the same ops: these are decided for one part of each axis, which all of them hold.

    Parameters
    ----------
    arriving : placements of the values that come from other stages.

    Raises
    ------
    PlanError
        If a placement does not divide a tensor, or an op cannot run as the plan says.
    """
    assignments: dict[str, Assignment] = {}
    outputs: list[dict[str, Placement]] = [{} for _ in program.outputs]
    named, own, held = placed(program), program, mesh.mesh.shares(mesh.rank)
    for axis in mesh.axes:
        wanted = {name: p for name, p in mesh.wanted[axis.name].items() if name in named}
        wanted |= (arriving or {}).get(axis.name, {})
        whole = PARTIAL if axis.name in mesh.summed_over else REPLICATE
        choices = named_in(program, (mesh.choices or {}).get(axis.name, {}))
        try:
            # A stage may add to the gradient of a parameter of which it has not the value.
            grads = _of_gradients(program, {**mesh.wanted[axis.name], **wanted}, whole)
            wanted = {**grads, **wanted}
            sharded = shard(program, axis, wanted, choices, mesh.sums_before_sending)
        except ChoiceError as error:
            raise PlanError(f"choices on axis {axis.name!r}: {error}") from error
        except ValueError as error:
            raise PlanError(f"placements on axis {axis.name!r}: {error.args[0]}") from error
        program, assignments[axis.name] = sharded.program, sharded.assignment
        if mesh.mesh.unequal:
            decided = applied_to(own, sharded.assignment, choices, held[axis.name].held)
            own = emit(decided, wanted, mesh.sums_before_sending).program
        for known, placement in zip(outputs, sharded.outputs, strict=True):
            known[axis.name] = placement
    program = own if mesh.mesh.unequal else program
    return ShardedStage(program, mesh.mesh, mesh.rank, arriving or {}, tuple(outputs), assignments)


def decided_choices(stages: Iterable[ShardedStage]) -> dict[str, dict[str, OpChoice]]:
    """Return the choice of every op of some stages, by address and axis.

    Views that several stages make for themselves, and what sharding made in them, may have one address and run in unlike
    ways: these are left out, and follow from the others.
    """
    found: dict[str, dict[str, OpChoice]] = {}
    unlike: set[tuple[str, str]] = set()
    for stage in stages:
        for axis, assignment in stage.assignments.items():
            for name, choice in assignment.decided().items():
                if found.setdefault(name, {}).setdefault(axis, choice) != choice:
                    unlike.add((name, axis))
    for name, axis in unlike:
        del found[name][axis]
    return {name: own for name, own in found.items() if own}


def check_choices(plan: Plan, stages: Sequence[ShardedStage]) -> None:
    """Refuse choices of ops that no stage has.

    Raises
    ------
    PlanError
        If there is one.
    """
    if not plan.choices:
        return
    for axis in dict.fromkeys(axis for stage in stages for axis in stage.assignments):
        programs = [stage.assignments[axis].program for stage in stages if axis in stage.assignments]
        for name in plan.chosen_along(axis):
            if not any(named_in(program, {name: None}) for program in programs):
                try:
                    programs[0].addresses.find(name)
                except AddressError as error:
                    raise PlanError(f"choices on axis {axis!r}: {error}") from error


def placed(program: Program) -> dict[str, int]:
    """Return the nodes of a stage whose placement the plan gives, by address and path; not those of other stages."""
    number = {name: i for i, name in enumerate(program.nodes)}
    paths = {i.path: number[i.node] for i in program.inputs if i.kind != "value"}
    return {**{name: number[node.name] for name, node in program.addresses.nodes.items()}, **paths}


def leaving(program: Program) -> Iterator[tuple[Output, fx.Node]]:
    """The outputs that other stages take."""
    for output, node in zip(program.outputs, output_args(program.graph), strict=True):
        if output.kind == "value":
            assert node is not None
            yield output, node


def _check_placements(
    program: Program, axis_name: str, wanted: Mapping[str, Placement], is_uneven: bool
) -> None:
    """Refuse placements in which ranks would hold something else than the model has."""
    inputs = {entry.path: entry.kind for entry in program.inputs}
    for name, placement in wanted.items():
        if name.startswith("grad:"):
            why = "a gradient lies as its parameter does; place the parameter"
        elif isinstance(placement, Partial) and (name in inputs or placement.reduction != "sum"):
            why = "allowed are R and S<dim>, and for results of ops also P, terms of a sum"
        elif is_uneven and isinstance(placement, Shard) and inputs.get(name, "batch") != "batch":
            why = "its ranks hold unequal shares of rows, and parameters are whole on such an axis; leave it out"
        else:
            continue
        raise PlanError(f"placements on axis {axis_name!r}: {name!r} is to be {placement}, but {why}")


def _of_gradients(
    program: Program, wanted: Mapping[str, Placement], whole: Placement
) -> dict[str, Placement]:
    """A gradient lies as that of which it is.

    That of a value of another stage is known by its shape, where all values of that shape have come cut alike.

    Parameters
    ----------
    wanted : placements of parameters, and of values of other stages.
    whole : how a gradient lies that is not cut: along axes over which buckets sum, ranks keep terms of it.
    """
    grads: dict[str, Placement] = {}
    for output in program.outputs:
        if output.kind == "grad":
            placement = wanted.get(output.path, REPLICATE)
            grads[f"grad:{output.path}"] = placement if isinstance(placement, Shard) else whole
    came = [(program.nodes[i.node], wanted[i.path]) for i in program.inputs if i.kind == "value"]
    for output, node in leaving(program):
        if node.meta["phase"] == "backward":
            shape = node.meta["val"].shape
            like = {p for n, p in came if n.meta["phase"] == "forward" and n.meta["val"].shape == shape}
            if len(like) == 1 and (like == {whole} == {REPLICATE} or all(isinstance(p, Shard) for p in like)):
                grads[f"value:{output.path}"] = like.pop()
    return grads
