"""Cutting a model into pipeline stages at block boundaries: balanced by time, or evenly by count."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate

from trainyard.job.plan import PlanError
from trainyard.job.tables import OpTable
from trainyard.program.blocks import Block, blocks
from trainyard.program.flops import node_flops
from trainyard.program.program import Program
from trainyard.reading.arguments import WrongValueError


def balanced_cuts(costs: Sequence[float], num_parts: int) -> tuple[int, ...]:
    """Cut a sequence into consecutive, non-empty parts so that the costliest part costs least.

    Bisection on the costliest part. Of the cuts that reach it, each part is as near to an even share of what is left
    as the parts after it allow, so that parts are not long only because they can be.

    Parameters
    ----------
    costs : of the elements, in any unit.
    num_parts : at least 1 and at most ``len(costs)``.

    Returns
    -------
    The index of the first element of every part but the first; ``num_parts - 1`` of them.

    Raises
    ------
    WrongValueError
        If there are fewer elements than parts.

    Examples
    --------
    >>> balanced_cuts([4, 1, 1, 1, 1], 2)
    (1,)
    >>> balanced_cuts([1] * 10, 4)
    (2, 5, 7)
    """
    count = len(costs)
    if not 1 <= num_parts <= count:
        raise WrongValueError(
            f"{count} elements cannot be cut into {num_parts} parts; at least 1 and at most {count}"
        )
    before = list(accumulate(map(float, costs), initial=0.0))
    low, high = max(max(costs), before[-1] / num_parts), before[-1]
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if _earliest(before, num_parts, middle) else (middle, high)
    earliest = _earliest(before, num_parts, high)
    assert earliest is not None
    return _evened(before, earliest, high)


def _earliest(before: list[float], num_parts: int, most: float) -> list[int] | None:
    """The earliest start of each part but the first if none costs more than ``most``; None if that is not possible.

    Parameters
    ----------
    before : sum of the costs before each element, and of all.
    """
    most *= 1 + 1e-9
    starts: list[int] = []
    end = len(before) - 1
    for left in range(num_parts - 1, 0, -1):
        end = max(left, bisect_left(before, before[end] - most))
        starts.append(end)
    return starts[::-1] if before[end] <= most else None


def _evened(before: list[float], earliest: list[int], most: float) -> tuple[int, ...]:
    """Cuts with parts of at most ``most``, each as near to an even share of the rest as the later parts allow."""
    most *= 1 + 1e-9
    count, cuts, start = len(before) - 1, [], 0
    for done, first in enumerate(earliest):
        left = len(earliest) - done
        share = before[start] + (before[-1] - before[start]) / (left + 1)
        longest = min(bisect_right(before, before[start] + most) - 1, count - left)
        candidates = range(max(start + 1, first), max(longest, start + 1, first) + 1)
        start = min(candidates, key=lambda end: abs(before[end] - share))
        cuts.append(start)
    return tuple(cuts)


def balanced_starts(program: Program, num_stages: int, ops: OpTable) -> tuple[str, ...]:
    """Stage starts at block boundaries such that the slowest stage takes as little time as possible.

    A block costs the seconds of its forward and its backward pass. Blocks without matrix products (embeddings,
    activations) stay with the one that follows, so that every stage has work; the last ones stay with the one before.

    Parameters
    ----------
    ops : of the program.

    Raises
    ------
    PlanError
        If the model has fewer blocks with products than stages.
    """
    costs: list[float] = []
    starts: list[str] = []
    first, waiting_s = "", 0.0
    took = _seconds_by_block(program, ops)
    for block in blocks(program):
        first = first or block.first
        waiting_s += took[block.first]
        if any(node_flops(node) for node in block.ops):
            costs.append(waiting_s)
            starts.append(first)
            first, waiting_s = "", 0.0
    if num_stages > max(1, len(costs)):
        raise PlanError(
            f"{program.name} has {len(costs)} blocks with matrix products and cannot be cut into {num_stages} stages "
            f"at their boundaries; use at most {max(1, len(costs))} stages"
        )
    if num_stages == 1:
        return ()
    costs[-1] += waiting_s
    return tuple(starts[i] for i in balanced_cuts(costs, num_stages))


def _seconds_by_block(program: Program, ops: OpTable) -> dict[str, float]:
    """Seconds of both passes of every block, by its first op; a backward op belongs to what it differentiates."""
    block_at: dict[int, str] = {}
    found: dict[str, float] = {}
    last = ""
    for block in blocks(program):
        found[block.first] = 0.0
        for node in block.ops:
            block_at.setdefault(node.meta["position"], block.first)
        last = block.first
    for name, seconds in zip(ops.names, ops.seconds.tolist(), strict=True):
        if found:
            found[block_at.get(program.addresses.nodes[name].meta["position"], last)] += seconds
    return found


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
