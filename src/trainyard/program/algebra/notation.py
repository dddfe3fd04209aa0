"""The notation of the index algebra: an op's dimensions as products of named factors.

``"m k, k n -> m n"`` is a matrix product: ``m`` and ``n`` are mapped, ``k`` is summed. ``"b (h d) -> b h d"`` is a
view that splits a dimension into heads. A factor may be cut over the ranks of a mesh axis: every operand that
has it is sharded there, every result that has it is sharded there, and a result that lacks it holds partial
results. All sharding choices of an op follow from this (the idea of Tofu's TDL, EuroSys 2019, and of GSPMD's
propagation, arXiv 2105.04663).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache

from trainyard.program.placement import (
    PARTIAL,
    REPLICATE,
    OpChoice,
    Partial,
    Placement,
    Reduction,
    Shard,
)

Dims = tuple[tuple[str, ...], ...]
"""The factors of each dimension of a tensor, outer to inner; a dimension of size one has none."""


@dataclass(frozen=True, eq=False)
class OpAxes:
    """One op on given shapes, in factors.

    Attributes
    ----------
    operands, results : dimensions of every tensor argument (in the order of ``tensor_args``) and result.
    sizes : elements of every factor.
    whole : factors that cannot be cut, because elements along them depend on each other.
    reductions : how parts combine in a result that lacks the cut factor; ``sum`` where not given.
    addends : operands that are added to the result, so that they must be partial when a factor is summed.
    linear : sets of operands in which the op is jointly linear; their partial sums pass through.
    contiguous : factors whose parts must be one piece each, because a part's position is computed.
    unaffected : pairs of a result and a factor that it lacks without being summed over it; where the factor is
        cut all ranks compute this result alike.
    """

    operands: tuple[Dims, ...]
    results: tuple[Dims, ...]
    sizes: Mapping[str, int]
    whole: frozenset[str] = frozenset()
    reductions: Mapping[str, Reduction] = field(default_factory=dict)
    addends: frozenset[int] = frozenset()
    linear: tuple[frozenset[int], ...] = ()
    contiguous: frozenset[str] = frozenset()
    unaffected: frozenset[tuple[int, str]] = frozenset()


@dataclass(frozen=True)
class Choice:
    """One way to run an op on the ranks of a mesh axis.

    Attributes
    ----------
    factor : the factor that is cut; None where every rank does the same or partial sums pass through.
    operands, results : the placements that go with it.
    """

    factor: str | None
    operands: tuple[Placement, ...]
    results: tuple[Placement, ...]

    @property
    def text(self) -> str:
        """The placements, as a plan says them."""
        return str(OpChoice(self.operands, self.results))


@lru_cache(maxsize=2**16)
def choices(axes: OpAxes, num_ranks: int, blocks: tuple[tuple[str, int], ...] = ()) -> tuple[Choice, ...]:
    """Every valid way to run an op on ``num_ranks`` ranks; the first replicates it.

    Parameters
    ----------
    blocks : pairs of a factor and a number of blocks: cut that factor inside each of its blocks, too (see
        ``blocks_at``).
    """
    found = [Choice(None, (REPLICATE,) * len(axes.operands), (REPLICATE,) * len(axes.results))]
    found += [
        _cut(axes, f, 1) for f, size in axes.sizes.items() if f not in axes.whole and size % num_ranks == 0
    ]
    for factor, count in sorted(set(blocks)):
        if factor not in axes.whole | axes.contiguous and axes.sizes[factor] % (count * num_ranks) == 0:
            found.append(_cut(axes, factor, count))
    for group in axes.linear:
        operands = tuple(PARTIAL if i in group else REPLICATE for i in range(len(axes.operands)))
        found.append(Choice(None, operands, (PARTIAL,) * len(axes.results)))
    return tuple(found)


def options(
    axes: OpAxes, operands: Sequence[Placement], results: Mapping[int, Placement], num_ranks: int
) -> tuple[Choice, ...]:
    """The choices of an op, blocked cuts among them where an operand, or what is wished of a result, has one."""
    blocks = [b for dims, p in zip(axes.operands, operands, strict=False) for b in blocks_at(axes, dims, p)]
    blocks += [b for i, p in results.items() for b in blocks_at(axes, axes.results[i], p)]
    return choices(axes, num_ranks, tuple(blocks))


def blocks_at(axes: OpAxes, dims: Dims, placement: Placement) -> list[tuple[str, int]]:
    """The factors, with their blocks, that a blocked shard of a tensor with these dimensions can mean."""
    if not isinstance(placement, Shard) or placement.blocks == 1:
        return []
    found, outer = [], 1
    for factor in dims[placement.dim]:
        if placement.blocks % outer == 0 and placement.blocks > outer:
            found.append((factor, placement.blocks // outer))
        outer *= axes.sizes[factor]
    return found


def _cut(axes: OpAxes, factor: str, blocks: int) -> Choice:
    summed = [
        not _has(dims, factor) and (i, factor) not in axes.unaffected for i, dims in enumerate(axes.results)
    ]
    partial = Partial(axes.reductions.get(factor, "sum"))
    operands = tuple(
        _where(axes, dims, factor, blocks) or (PARTIAL if any(summed) and i in axes.addends else REPLICATE)
        for i, dims in enumerate(axes.operands)
    )
    results = tuple(
        _where(axes, dims, factor, blocks) or (partial if s else REPLICATE)
        for dims, s in zip(axes.results, summed, strict=True)
    )
    return Choice(factor, operands, results)


def _has(dims: Dims, factor: str) -> bool:
    return any(factor in factors for factors in dims)


def _where(axes: OpAxes, dims: Dims, factor: str, blocks: int) -> Shard | None:
    for dim, factors in enumerate(dims):
        if factor in factors:
            return Shard(dim, blocks * math.prod(axes.sizes[f] for f in factors[: factors.index(factor)]))
    return None


@cache
def parse(text: str) -> tuple[tuple[Dims, ...], tuple[Dims, ...]]:
    """Read ``"m k, k n -> m n"`` into operand and result dimensions.

    Raises
    ------
    ValueError
        If there is not exactly one arrow or a parenthesis is left open.
    """
    if text.count("->") != 1 or text.count("(") != text.count(")"):
        raise ValueError(f"{text!r} is no rule; write operands -> results, such as 'm k, k n -> m n'")
    left, right = text.split("->")
    return _parse_side(left), _parse_side(right)


def _parse_side(text: str) -> tuple[Dims, ...]:
    return tuple(
        tuple(
            tuple(t for t in token.strip("()").split() if t != "1")
            for token in re.findall(r"\([^)]*\)|\S+", part)
        )
        for part in text.split(",")
    )


def axes_from(
    text: str, operand_shapes: Sequence[Sequence[int]], *, whole: str = "", **kwargs: object
) -> OpAxes:
    """An ``OpAxes`` from a rule whose dimensions are single factors.

    Parameters
    ----------
    text : the rule; every operand dimension one factor or ``1``.
    operand_shapes : shape of each operand, from which the factors take their sizes.
    whole : factors that cannot be cut, separated by blanks.
    """
    operands, results = parse(text)
    sizes: dict[str, int] = {}
    for dims, shape in zip(operands, operand_shapes, strict=True):
        for factors, size in zip(dims, shape, strict=True):
            if len(factors) == 1:
                sizes[factors[0]] = max(size, sizes.get(factors[0], 1))
    return OpAxes(operands, results, sizes, frozenset(whole.split()), **kwargs)  # type: ignore[arg-type]


def split_and_merge(source: Sequence[int], target: Sequence[int]) -> tuple[Dims, Dims, dict[str, int]]:
    """Factors of a view: the finest common refinement of two shapes of equal size.

    Returns
    -------
    Dimensions of the source, of the target, and the size of each factor. Dimensions whose boundaries do not
    divide each other (``6 4 -> 4 6``) share no factor; theirs start with ``!`` and cannot be cut.
    """
    source_dims: list[tuple[str, ...]] = [()] * len(source)
    target_dims: list[tuple[str, ...]] = [()] * len(target)
    sizes: dict[str, int] = {}
    for left, right in _equal_groups(source, target):
        parts = _refine([source[i] for i in left], [target[j] for j in right])
        if parts is None:
            for dims, shape, group, side in (
                (source_dims, source, left, "s"),
                (target_dims, target, right, "t"),
            ):
                for d in group:
                    dims[d] = (f"!{side}{d}",)
                    sizes[f"!{side}{d}"] = shape[d]
            continue
        for a, b, size in parts:
            name = f"f{len(sizes)}"
            sizes[name] = size
            source_dims[left[a]] += (name,)
            target_dims[right[b]] += (name,)
    return tuple(source_dims), tuple(target_dims), sizes


def _equal_groups(source: Sequence[int], target: Sequence[int]) -> list[tuple[list[int], list[int]]]:
    """The smallest runs of dimensions, size one left out, that hold equally many elements on both sides."""
    left = [i for i, n in enumerate(source) if n != 1]
    right = [j for j, n in enumerate(target) if n != 1]
    groups: list[tuple[list[int], list[int]]] = []
    while left and right:
        a, b = [left.pop(0)], [right.pop(0)]
        while (x := math.prod(source[i] for i in a)) != (y := math.prod(target[j] for j in b)):
            if x < y:
                a.append(left.pop(0))
            else:
                b.append(right.pop(0))
        groups.append((a, b))
    return groups


def _refine(source: list[int], target: list[int]) -> list[tuple[int, int, int]] | None:
    """Cut both shapes into the same outer-to-inner factors: (source dim, target dim, size), or None."""
    parts: list[tuple[int, int, int]] = []
    i = j = 0
    rest_i, rest_j = source[0], target[0]
    while True:
        size = min(rest_i, rest_j)
        if max(rest_i, rest_j) % size:
            return None
        parts.append((i, j, size))
        rest_i, rest_j = rest_i // size, rest_j // size
        if rest_i == 1:
            i += 1
        if rest_j == 1:
            j += 1
        if i == len(source) or j == len(target):
            return parts
        rest_i = source[i] if rest_i == 1 else rest_i
        rest_j = target[j] if rest_j == 1 else rest_j
