"""Blocks: the repeated parts of a model (transformer layers, residual blocks), where plans cut and recompute."""

from __future__ import annotations

from dataclasses import dataclass

from torch import fx

from trainyard.program.addresses import address
from trainyard.program.program import Program


@dataclass(frozen=True, eq=False)
class Block:
    """A run of forward ops in program order that one part of the model made.

    Attributes
    ----------
    path : of the part: ``blocks.3``, or the first component for what is not repeated (``tokens``).
    ops : its forward ops in program order.
    """

    path: str
    ops: tuple[fx.Node, ...]

    @property
    def first(self) -> str:
        """Address of the first op: a place where a stage can start."""
        return address(self.ops[0])


def blocks(program: Program) -> tuple[Block, ...]:
    """The forward ops of a program, in order, as blocks.

    Ops outside any module (the loss, glue between layers) belong to the block before them.
    """
    runs: list[tuple[str, list[fx.Node]]] = []
    for node in program.graph.nodes:
        if node.op != "call_function" or node.meta["phase"] != "forward":
            continue
        path = block_path(node.meta["layer"])
        if runs and (not path or path == runs[-1][0]):
            runs[-1][1].append(node)
        else:
            runs.append((path, [node]))
    return tuple(Block(path, tuple(ops)) for path, ops in runs)


def block_path(layer: str) -> str:
    """The module path up to its first index: ``blocks.3.mlp.up`` is in ``blocks.3``."""
    parts = layer.split(".")
    for i, part in enumerate(parts):
        if part.isdigit():
            return ".".join(parts[: i + 1])
    return parts[0]
