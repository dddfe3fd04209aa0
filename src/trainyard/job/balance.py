"""Cutting a model into pipeline stages at block boundaries: balanced by work, or evenly by count."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

from trainyard.job.plan import PlanError
from trainyard.program.blocks import Block, blocks
from trainyard.program.flops import node_flops
from trainyard.program.program import Program


def block_flops(block: Block) -> float:
    """Flops of the forward pass of a block."""
    return float(sum(node_flops(node) for node in block.ops))


def balanced_cuts(costs: Sequence[float], num_parts: int) -> tuple[int, ...]:
    """Cut a sequence into consecutive, non-empty parts so that the costliest part costs least.

    Bisection on the costliest part; each part is as long as that allows, which decides whether it is possible.

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
    >>> balanced_cuts([1, 1, 1, 1, 1, 1], 3)
    (2, 4)
    """
    count = len(costs)
    if not 1 <= num_parts <= count:
        raise ValueError(
            f"{count} elements cannot be cut into {num_parts} parts; at least 1 and at most {count}"
        )
    before = list(accumulate(map(float, costs), initial=0.0))
    low, high = max(max(costs), before[-1] / num_parts), before[-1]
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if _cuts_within(before, num_parts, middle) else (middle, high)
    found = _cuts_within(before, num_parts, high)
    assert found is not None
    return found


def _cuts_within(before: list[float], num_parts: int, most: float) -> tuple[int, ...] | None:
    """Cuts into parts of at most ``most`` each, every part as long as it can be; None if there are none.

    Parameters
    ----------
    before : sum of the costs before each element, and of all.
    """
    count = len(before) - 1
    cuts: list[int] = []
    start = 0
    for left in range(num_parts - 1, 0, -1):
        end = bisect_right(before, before[start] + most * (1 + 1e-12)) - 1
        start = max(start + 1, min(end, count - left))
        if before[start] - before[cuts[-1] if cuts else 0] > most * (1 + 1e-9):
            return None
        cuts.append(start)
    return tuple(cuts) if before[-1] - before[cuts[-1] if cuts else 0] <= most * (1 + 1e-9) else None


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
