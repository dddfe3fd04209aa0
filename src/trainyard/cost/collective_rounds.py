"""The rounds of each algorithm in closed form: who sends what share of the data to whom, how often.

A round repeats with the same senders and sizes many times (every step of a ring), so an algorithm is a
handful of *patterns*. Each is timed once and multiplied.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from trainyard.cost.collective_layout import Layout, Ring

__all__ = [
    "ALGORITHMS",
    "KINDS",
    "Pattern",
    "algorithms_for",
    "chain_orders",
    "list_pairs",
    "patterns_of",
    "supports",
    "tree_levels",
]

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send")
"""Kinds of collectives."""

ALGORITHMS = {
    "all_reduce": ("ring", "tree", "halving_doubling", "hierarchical", "hierarchical_halving_doubling"),
    "all_gather": ("ring", "halving_doubling", "hierarchical", "hierarchical_halving_doubling"),
    "reduce_scatter": ("ring", "halving_doubling", "hierarchical", "hierarchical_halving_doubling"),
    "all_to_all": ("direct", "hierarchical"),
    "broadcast": ("tree", "chain", "hierarchical"),
    "send": ("direct",),
}
"""Algorithms of each kind."""


@dataclass(frozen=True, eq=False)
class Pattern:
    """One round and how often it comes.

    Parameters
    ----------
    sources, targets
        Positions, shape ``(num_sends,)``.
    shares
        Share of the data that each sends, shape ``(num_sends,)``.
    repeat
        Number of such rounds.
    all_pairs
        Rows of positions, shape ``(num_groups, size)``, where every member of a row sends the same share to
        every other one of its row; `sources` and `targets` are then empty, because listing them is slow for
        large groups.
    """

    sources: Ints
    targets: Ints
    shares: Floats
    repeat: int
    all_pairs: Ints | None = None


def supports(kind: str, algorithm: str, layout: Layout) -> bool:
    """Whether an algorithm does a kind on a group of this shape.

    Parameters
    ----------
    kind, algorithm
        What and how.
    layout
        Shape of the group.

    Returns
    -------
    bool
        True if it does.
    """
    if algorithm not in ALGORITHMS[kind]:
        return False
    size, num_nodes = layout.num_ranks, len(layout.node_sizes)
    if algorithm == "halving_doubling":
        return kind == "all_reduce" or size & (size - 1) == 0
    if algorithm.startswith("hierarchical"):
        power_of_two = num_nodes & (num_nodes - 1) == 0
        several = num_nodes > 1 and layout.is_even and layout.node_sizes[0] > 1
        return several and (algorithm == "hierarchical" or power_of_two)
    return size == 2 if kind == "send" else True


def algorithms_for(kind: str, layout: Layout) -> tuple[str, ...]:
    """Algorithms that do a kind on a group of this shape; at least one."""
    return tuple(algorithm for algorithm in ALGORITHMS[kind] if supports(kind, algorithm, layout))


@lru_cache(maxsize=1024)
def tree_levels(size: int) -> tuple[tuple[tuple[int, int], ...], ...]:
    """Edges (parent, child) of a binary heap, level by level from the root.

    Parameters
    ----------
    size
        Number of members; the children of ``i`` are ``2i + 1`` and ``2i + 2``.

    Returns
    -------
    tuple
        Edges of each level.
    """
    levels = []
    first = 1
    while first < size:
        levels.append(tuple(((child - 1) // 2, child) for child in range(first, min(2 * first + 1, size))))
        first = 2 * first + 1
    return tuple(levels)


def chain_orders(layout: Layout) -> tuple[Ring, ...]:
    """The rings of a group, each turned so that it starts at the root: chains for a broadcast.

    Parameters
    ----------
    layout
        Shape of the group.

    Returns
    -------
    tuple of Ring
        Orders that start at position 0, and shares.
    """
    turned = ((order[order.index(0) :] + order[: order.index(0)], share) for order, share in layout.rings())
    return tuple(turned)


def _pattern(sources: Ints, targets: Ints, share: float | Floats, repeat: int) -> Pattern:
    shares = np.broadcast_to(np.asarray(share, dtype=np.float64), sources.shape)
    return Pattern(sources, targets, shares, repeat)


def _ring_pattern(rings: tuple[Ring, ...], bases: Ints, share: float, repeat: int) -> Pattern:
    """Every step of a ring: all members send one chunk to the next, on every ring, in every group of "
    "members."""
    orders = np.array([order for order, _ in rings], dtype=np.int64)
    parts = np.array([part for _, part in rings])
    sources = (bases[:, None, None] + orders[None]).ravel()
    targets = (bases[:, None, None] + np.roll(orders, -1, axis=1)[None]).ravel()
    shares = np.broadcast_to(parts[None, :, None] * share, (len(bases), *orders.shape)).ravel()
    return Pattern(sources, targets, shares, repeat)


def _halving_patterns(positions: Ints, share: float) -> list[Pattern]:
    """Steps of recursive halving on rows of `positions`, shape (members, groups), of `share` of the data "
    "each."""
    patterns = []
    index = np.arange(len(positions))
    for bit in range(len(positions).bit_length() - 1):
        partner = positions[index ^ (1 << bit)]
        patterns.append(_pattern(positions.ravel(), partner.ravel(), share / 2 ** (bit + 1), 1))
    return patterns


def _all_pairs(groups: Ints, share: float) -> Pattern:
    none = np.empty(0, dtype=np.int64)
    return Pattern(none, none, np.array([share]), 1, all_pairs=groups)


def list_pairs(groups: Ints) -> tuple[Ints, Ints]:
    """Every ordered pair of different members of each row.

    Parameters
    ----------
    groups
        Members, shape ``(num_groups, size)``.

    Returns
    -------
    sources, targets : ndarray
        Shape ``(num_groups * size * (size - 1),)``.
    """
    size = groups.shape[1]
    apart = ~np.eye(size, dtype=bool)
    sources = np.repeat(groups[:, :, None], size, axis=2)[:, apart].ravel()
    targets = np.repeat(groups[:, None, :], size, axis=1)[:, apart].ravel()
    return sources, targets


def _tree_patterns(members: Ints, share: float, both_ways: bool) -> list[Pattern]:
    """Levels of a binary heap over rows of `members`, shape (members, groups)."""
    down = []
    for level in tree_levels(len(members)):
        edges = np.array(level, dtype=np.int64)
        down.append(_pattern(members[edges[:, 0]].ravel(), members[edges[:, 1]].ravel(), share, 1))
    up = [Pattern(p.targets, p.sources, p.shares, 1) for p in reversed(down)]
    return up + down if both_ways else down


def _flat_patterns(kind: str, algorithm: str, layout: Layout) -> list[Pattern]:
    size = layout.num_ranks
    everyone = np.arange(size)
    phases = 2 if kind == "all_reduce" else 1
    if algorithm == "ring":
        return [_ring_pattern(layout.rings(), np.zeros(1, dtype=np.int64), 1.0 / size, phases * (size - 1))]
    if algorithm == "tree":
        return _tree_patterns(everyone[:, None], 1.0, kind == "all_reduce")
    if algorithm == "chain":
        chains = chain_orders(layout)
        orders = np.array([order for order, _ in chains], dtype=np.int64)
        parts = np.repeat([part for _, part in chains], size - 1)
        return [Pattern(orders[:, :-1].ravel(), orders[:, 1:].ravel(), parts, 1)]
    if kind == "send":
        return [_pattern(everyone[:1], everyone[1:], 1.0, 1)]
    if algorithm == "direct":
        return [_all_pairs(everyone[None], 1.0 / size)]
    power = 1 << (size.bit_length() - 1)
    steps = _halving_patterns(everyone[:power, None], 1.0)
    patterns = steps * phases
    if size > power:
        folded, kept = everyone[power:], everyone[: size - power]
        patterns = [_pattern(folded, kept, 1.0, 1), *patterns, _pattern(kept, folded, 1.0, 1)]
    return patterns


def _hierarchical_patterns(kind: str, algorithm: str, layout: Layout) -> list[Pattern]:
    num_nodes, size = len(layout.node_sizes), layout.node_sizes[0]
    grid = np.arange(num_nodes * size).reshape(num_nodes, size)
    if kind == "all_to_all":
        return [_all_pairs(grid, 1.0 / size), _all_pairs(grid.T, 1.0 / num_nodes)]
    phases = 2 if kind == "all_reduce" else 1
    inside = _ring_pattern(layout.local_rings, grid[:, 0], 1.0 / size, phases * (size - 1))
    if kind == "broadcast":
        spread = _pattern(np.zeros(size - 1, dtype=np.int64), grid[0, 1:], 1.0 / size, 1)
        return [spread, *_tree_patterns(grid, 1.0 / size, False), inside]
    if algorithm == "hierarchical_halving_doubling":
        return [inside, *_halving_patterns(grid, 1.0 / size) * phases]
    ahead = np.roll(grid, -1, axis=0)
    between = _pattern(grid.ravel(), ahead.ravel(), 1.0 / (num_nodes * size), phases * (num_nodes - 1))
    return [inside, between]


@lru_cache(maxsize=512)
def patterns_of(kind: str, algorithm: str, layout: Layout) -> tuple[Pattern, ...]:
    """Rounds of an algorithm on a group of some shape.

    The chain is one round with all hops busy and the whole data on each; its caller cuts it into pieces.

    Parameters
    ----------
    kind, algorithm
        What and how; must be supported.
    layout
        Shape of the group.

    Returns
    -------
    tuple of Pattern
        The order of the rounds does not matter to their sum.
    """
    if algorithm.startswith("hierarchical"):
        return tuple(_hierarchical_patterns(kind, algorithm, layout))
    return tuple(_flat_patterns(kind, algorithm, layout))
