"""Cutting a model into pipeline stages at block boundaries: balanced by work, or evenly by count."""

from __future__ import annotations

from collections.abc import Sequence

from trainyard.job.plan import PlanError
from trainyard.program.blocks import Block, blocks
from trainyard.program.flops import node_flops
from trainyard.program.program import Program


def block_flops(block: Block) -> float:
    """Flops of the forward pass of a block."""
    return float(sum(node_flops(node) for node in block.ops))


def balanced_cuts(costs: Sequence[float], num_parts: int) -> tuple[int, ...]:
    """Cut a sequence into consecutive, non-empty parts so that the costliest part costs least.

    Dynamic programming over (parts, end); among equal optima the earliest cuts, so that a result repeats.

    Parameters
    ----------
    costs : of the elements, in any unit.
    num_parts : at least 1 and at most ``len(costs)``.

    Returns
    -------
    The index of the first element of every part but the first; ``num_parts - 1`` of them.

    Raises
    ------
    ValueError
        If there are fewer elements than parts.

    Examples
    --------
    >>> balanced_cuts([4, 1, 1, 1, 1], 2)
    (1,)
    """
    count = len(costs)
    if not 1 <= num_parts <= count:
        raise ValueError(
            f"{count} elements cannot be cut into {num_parts} parts; at least 1 and at most {count}"
        )
    before = [0.0]
    for cost in costs:
        before.append(before[-1] + cost)
    best = before[:]
    came_from: list[list[int]] = []
    for part in range(1, num_parts):
        row, choice = [float("inf")] * (count + 1), [0] * (count + 1)
        for end in range(part + 1, count + 1):
            for start in range(part, end):
                worst = max(best[start], before[end] - before[start])
                if worst < row[end]:
                    row[end], choice[end] = worst, start
        best = row
        came_from.append(choice)
    cuts = [count]
    for choice in reversed(came_from):
        cuts.append(choice[cuts[-1]])
    return tuple(reversed(cuts[1:]))


def balanced_starts(program: Program, num_stages: int) -> tuple[str, ...]:
    """Stage starts at block boundaries such that the stage with most flops has as few as possible.

    Blocks without matrix products (embeddings, activations) stay with the one that follows, so that every stage
    has work; the last ones stay with the one before.

    Raises
    ------
    PlanError
        If the model has fewer blocks with products than stages.
    """
    costs: list[float] = []
    starts: list[str] = []
    first = ""
    for block in blocks(program):
        first = first or block.first
        cost = block_flops(block)
        if cost:
            costs.append(cost)
            starts.append(first)
            first = ""
    if num_stages > max(1, len(costs)):
        raise PlanError(
            f"{program.name} has {len(costs)} blocks with matrix products and cannot be cut into {num_stages} stages "
            f"at their boundaries; use at most {max(1, len(costs))} stages"
        )
    if num_stages == 1:
        return ()
    return tuple(starts[i] for i in balanced_cuts(costs, num_stages))


def repeated_blocks(program: Program) -> tuple[Block, ...]:
    """The longest run of consecutive blocks of one list: the layers of a transformer."""
    runs: list[list[Block]] = []
    for block in blocks(program):
        parent, _, index = block.path.rpartition(".")
        if not index.isdigit():
            runs.append([])
        elif runs and runs[-1] and runs[-1][-1].path.rpartition(".")[0] == parent:
            runs[-1].append(block)
        else:
            runs.append([block])
    longest: list[Block] = []
    for run in runs:
        longest = run if len(run) > len(longest) else longest
    return tuple(longest)


def even_starts(program: Program, num_stages: int) -> tuple[str, ...]:
    """Stage starts that give every stage as many repeated blocks; the rest goes to the first and the last.

    Raises
    ------
    PlanError
        If the repeated blocks do not divide by the number of stages.
    """
    if num_stages == 1:
        return ()
    layers = repeated_blocks(program)
    if not layers or len(layers) % num_stages:
        allowed = [n for n in range(2, len(layers) + 1) if len(layers) % n == 0]
        raise PlanError(
            f"{program.name} has {len(layers)} repeated blocks, which do not divide evenly into {num_stages} "
            f"stages; use {', '.join(map(str, allowed)) or 'one stage'}"
        )
    per_stage = len(layers) // num_stages
    return tuple(layers[i * per_stage].first for i in range(1, num_stages))
