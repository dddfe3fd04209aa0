"""The choice of an op that moves the fewest bytes along a mesh axis."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

import torch

from trainyard.program.algebra.notation import Choice, OpAxes, options
from trainyard.program.placement import Partial, Placement, Replicate, Shard
from trainyard.program.program import size_bytes

__all__ = ["Operand", "Result", "cheapest", "size_of"]

# A parameter's placement is the plan's decision: moving it instead of an activation is a last resort.
_PARAM_MOVE_PENALTY = 100.0
# Partial sums are better reduced later than now: the sum of two is reduced once.
_LATER = 0.99
# What ranks of unequal shares cannot do, or what an order of their own does not allow.
_NEVER = 1e30
# What ranks that run one after the other cannot do while they run.
_IN_TURNS_PENALTY = 1e6
# Cutting or masking a replicated tensor moves nothing but is not free either; it breaks ties.
_LOCAL_CUT_COST = 1e-3


class Size(NamedTuple):
    """How large a tensor is."""

    num_bytes: int
    numel: int


def size_of(value: torch.Tensor) -> Size:
    return Size(size_bytes(value), value.numel())


class Operand(NamedTuple):
    """What the cost of moving an operand depends on.

    Attributes
    ----------
    have : where it is found.
    num_users : of partial sums; 1 of others.
    moved : where it has been moved already in this phase.
    stays : whether it cannot be moved.
    """

    have: Placement
    size: Size
    is_param: bool
    num_users: int
    moved: frozenset[Placement]
    stays: bool = False


class Result(NamedTuple):
    """A result and where it is wanted, if anywhere."""

    size: Size
    want: Placement | None


@lru_cache(maxsize=2**16)
def cheapest(
    axes: OpAxes,
    operands: tuple[Operand, ...],
    results: tuple[Result, ...],
    is_term: bool,
    num_ranks: int,
    sequential: bool,
    only_sums: bool = False,
) -> Choice:
    """The choice of an op that moves the fewest bytes; blocks repeat, so most ops have been decided before.

    Parameters
    ----------
    is_term : whether the op is a sum that is only a term of another sum.
    sequential : the ranks run one after the other.
    only_sums : parts stay on their ranks, which only add up terms of sums.
    """
    moves = _Moves(operands, results, is_term, num_ranks, sequential, only_sums)
    wishes = {i: r.want for i, r in enumerate(results) if r.want is not None}
    best: Choice | None = None
    best_cost = float("inf")
    for option in options(axes, [o.have for o in operands], wishes, num_ranks):
        cost = moves.cost(option, best_cost)
        # Of equally cheap ones the first, in which the fewest dimensions are cut, unless another is as wanted.
        if cost < best_cost:
            best, best_cost = option, cost
    assert best is not None
    return best


@dataclass
class _Moves:
    """What the choices of one op move. What is asked for every choice is found once."""

    operands: tuple[Operand, ...]
    results: tuple[Result, ...]
    is_term: bool
    num_ranks: int
    sequential: bool
    only_sums: bool
    _known: dict[tuple[int, Placement], float] = field(default_factory=dict)

    def cost(self, option: Choice, limit: float) -> float:
        """Bytes moved now for the operands, and later for the results; from ``limit`` on it is not counted further."""
        cost = 0.0
        for i, need in enumerate(option.operands):
            if need != self.operands[i].have:
                cost += self._operand(i, need)
        if cost >= limit:
            return cost
        for (size, want), placement in zip(self.results, option.results, strict=True):
            if want is None and isinstance(placement, Partial):
                cost += 0.0 if self.sequential else _LATER * _reduce_bytes(size.num_bytes, self.num_ranks)
            elif want is not None and want != placement:
                # A result that is computed whole to be cut is work done twice.
                again = isinstance(placement, Replicate) and isinstance(want, Shard)
                cost += size.num_bytes if again else _move_cost(size, placement, want, [size], self.num_ranks)
                cost += self._apart(placement, size)
        return cost

    def _operand(self, index: int, need: Placement) -> float:
        if (index, need) not in self._known:
            self._known[index, need] = self._move(self.operands[index], need)
        return self._known[index, need]

    def _move(self, operand: Operand, need: Placement) -> float:
        if need in operand.moved:
            return 0.0
        have, size = operand.have, operand.size
        if operand.stays:
            return _NEVER
        if self.sequential:
            return (_LOCAL_CUT_COST if isinstance(have, Replicate) else _IN_TURNS_PENALTY) * size.num_bytes
        moved = _move_cost(size, have, need, [r.size for r in self.results], self.num_ranks)
        if isinstance(have, Replicate) and isinstance(need, Partial) and self.is_term:
            moved = _LOCAL_CUT_COST * size.num_bytes
        if isinstance(have, Partial) and isinstance(need, Replicate):
            # What is reduced for one user is reduced for all; what is passed on is reduced by each.
            moved /= max(1, operand.num_users)
        return moved * (_PARAM_MOVE_PENALTY if operand.is_param else 1.0) + self._apart(have, size)

    def _apart(self, have: Placement, size: Size) -> float:
        """More than anything else costs, where parts would have to leave their ranks and may not."""
        return _NEVER * (1 + size.num_bytes) if self.only_sums and isinstance(have, Shard) else 0.0


def _reduce_bytes(num_bytes: int, num_ranks: int) -> float:
    return 2 * (num_ranks - 1) / num_ranks * num_bytes


def _move_cost(size: Size, have: Placement, need: Placement, results: list[Size], num_ranks: int) -> float:
    """Bytes a rank sends to bring a tensor from one placement to another, for an op with these results."""
    if have == need:
        return 0.0
    num_bytes = size.num_bytes
    part = (num_ranks - 1) / num_ranks * num_bytes
    if isinstance(have, Replicate):
        full = isinstance(need, Partial) and any(size.numel >= r.numel for r in results)
        # Turning a large replicated tensor into a term of a sum only postpones the reduction of the others.
        return 2 * part if full else _LOCAL_CUT_COST * num_bytes
    if isinstance(have, Partial):
        # Half as much is sent for a shard, but then the gradient's path has it gathered again: no gain unasked.
        return 2 * part if not isinstance(need, Partial) else float("inf")
    if isinstance(need, Shard):
        return part / num_ranks
    return part if isinstance(need, Replicate) else part + num_bytes
