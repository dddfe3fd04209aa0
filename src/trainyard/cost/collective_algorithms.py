"""Algorithms for collectives, each described once: who sends which chunks of the data to whom, in which rounds.

A description holds for every group of the same shape. The program of sends and its cost follow from it.

References
----------
.. [1] Thakur, Rabenseifner, Gropp, "Optimization of Collective Communication Operations in MPICH", IJHPCA 2005.
.. [2] Patarasuk, Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", JPDC 2009.
.. [3] Cho et al., "BlueConnect: Decomposing All-Reduce for Deep Learning on Heterogeneous Network Hierarchy",
   MLSys 2019 (hierarchical reduce-scatter, all-reduce, all-gather).
.. [4] Hwang et al., "Tutel: Adaptive Mixture-of-Experts at Scale", MLSys 2023 (two-dimensional all-to-all).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np

from trainyard.cost.collective_layout import Layout, Ring
from trainyard.cost.collective_program import Algorithm, Ints, Pattern, Phase

__all__ = ["ALGORITHMS", "KINDS", "algorithm_of", "algorithms_for"]

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

Phases = list[Phase]
ScatterGather = tuple[Phases, Phases]
"""Phases of a reduction, and of the distribution of its result."""


def algorithms_for(kind: str, layout: Layout) -> tuple[str, ...]:
    """Algorithms that do a kind on a group of this shape; at least one."""
    return tuple(name for name in ALGORITHMS[kind] if _supports(kind, name, layout))


def _supports(kind: str, name: str, layout: Layout) -> bool:
    size, num_nodes = layout.num_ranks, len(layout.node_sizes)
    if name == "halving_doubling":
        return kind == "all_reduce" or _is_power_of_two(size)
    if name.startswith("hierarchical"):
        several = num_nodes > 1 and layout.is_even and layout.node_sizes[0] > 1
        return several and (name == "hierarchical" or _is_power_of_two(num_nodes))
    return size == 2 if kind == "send" else True


def _is_power_of_two(number: int) -> bool:
    return number & (number - 1) == 0


@lru_cache(maxsize=512)
def algorithm_of(kind: str, name: str, layout: Layout, num_pieces: int = 1) -> Algorithm:
    """An algorithm on a group of some shape.

    Parameters
    ----------
    kind, name
        What it does, and how: one of `algorithms_for`.
    layout
        Shape of the group.
    num_pieces
        Pieces that a chain is cut into; without meaning for the others.

    Returns
    -------
    Algorithm
        Its phases.
    """
    if kind == "all_to_all":
        return _all_to_all(name, layout)
    everyone, all_data = np.arange(layout.num_ranks), np.zeros((1, 1), dtype=np.int64)
    if kind == "send":
        return Algorithm((_round(everyone[:1], everyone[1:], 1.0, _always(all_data)),), 1, (1.0,))
    if name == "tree":
        up, down = _tree(everyone[None], all_data, 1.0)
        return Algorithm((*(up if kind == "all_reduce" else []), *down), 1, (1.0,))
    if name == "chain":
        return _chain(layout, num_pieces)
    if name == "ring":
        return _ring_over_all(kind, layout)
    if name == "halving_doubling":
        return _halving_over_all(kind, layout.num_ranks)
    return _hierarchical(kind, name, layout)


def _of_kind(kind: str, scatter_gather: ScatterGather) -> Phases:
    scatter, gather = scatter_gather
    return (scatter if kind != "all_gather" else []) + (gather if kind != "reduce_scatter" else [])


def _pattern(sources: Ints, targets: Ints, share: float | np.ndarray) -> Pattern:
    return Pattern(sources.ravel(), targets.ravel(), np.broadcast_to(share, sources.shape).ravel())


def _round(
    sources: Ints, targets: Ints, share: float, chunks: Callable[[int], Ints], adds: bool = False
) -> Phase:
    return Phase(_pattern(sources, targets, share), 1, adds, chunks)


def _always(chunks: Ints) -> Callable[[int], Ints]:
    """The same chunks in every round."""
    return lambda _: chunks


def _ring(members: Ints, rings: Sequence[Ring], slots: Ints, share: float) -> ScatterGather:
    """Reduce-scatter and all-gather over rings [2].

    Parameters
    ----------
    members
        Positions, shape ``(num_groups, size)``; all groups do the same at the same time.
    rings
        Over the members of each group.
    slots
        The chunks that end at, or come from, each member on each ring, shape ``(num_groups, num_rings, size,
        num_chunks)``; the first may be 1.
    share
        Share of the data that a group works on.
    """
    orders = np.array([order for order, _ in rings])
    parts = np.array([part for _, part in rings])
    num_groups, size = members.shape
    sources = members[:, orders]
    pattern = _pattern(
        sources, members[:, np.roll(orders, -1, axis=1)], parts[None, :, None] * (share / size)
    )
    by_ring = np.arange(len(rings))[:, None]

    def chunks(delay: int) -> Callable[[int], Ints]:
        def of_round(number: int) -> Ints:
            carried = slots[:, by_ring, np.roll(orders, number + delay, axis=1)]
            return np.broadcast_to(carried, (num_groups, *carried.shape[1:])).reshape(sources.size, -1)

        return of_round

    scatter = Phase(pattern, size - 1, True, chunks(1))  # a chunk that starts behind its owner ends at it
    return [scatter], [Phase(pattern, size - 1, False, chunks(0))]


def _halving(members: Ints, slots: Ints, share: float) -> ScatterGather:
    """Reduce-scatter by recursive halving, and all-gather by recursive doubling, its reverse [1].

    Near partners come first, so that far ones get the small messages. Parameters are as in `_ring`, `slots` without
    rings: shape ``(num_groups, size, num_chunks)``.
    """
    size = members.shape[1]
    positions = np.arange(size)

    def half_of(keepers: Ints, bit: int) -> Callable[[int], Ints]:
        # Of what is still shared, a keeper gets the slots that agree with it in the lower bits.
        low, step = keepers % (2 << bit), 2 << bit
        return lambda _: slots[:, low[:, None] + np.arange(0, size, step)].reshape(members.size, -1)

    scatter, gather = [], []
    for bit in range(size.bit_length() - 1):
        partners = positions ^ (1 << bit)
        pattern = _pattern(members, members[:, partners], share / (2 << bit))
        scatter.append(Phase(pattern, 1, True, half_of(partners, bit)))
        gather.append(Phase(pattern, 1, False, half_of(positions, bit)))
    return scatter, gather[::-1]


def _tree(members: Ints, chunks: Ints, share: float) -> ScatterGather:
    """Up a binary heap, and down again; one round for each level.

    Parameters
    ----------
    members
        Positions, shape ``(num_groups, size)``; the children of member ``i`` are ``2i + 1`` and ``2i + 2``.
    chunks
        All that travels in each group, shape ``(num_groups, num_chunks)``.
    share
        Share of the data that a group works on.
    """
    up, down = [], []
    first = 1
    while first < members.shape[1]:
        children = np.arange(first, min(2 * first + 1, members.shape[1]))
        high, low = members[:, (children - 1) // 2], members[:, children]
        carried = _always(np.repeat(chunks, len(children), axis=0))
        up.append(_round(low, high, share, carried, adds=True))
        down.append(_round(high, low, share, carried))
        first = 2 * first + 1
    return up[::-1], down


def _chain(layout: Layout, num_pieces: int) -> Algorithm:
    """Broadcast down a chain on every ring, one piece behind the other."""
    rings = layout.rings()
    orders = np.array([order[order.index(0) :] + order[: order.index(0)] for order, _ in rings])
    parts = np.array([share / num_pieces for _, share in rings])
    pattern = _pattern(orders[:, :-1], orders[:, 1:], parts[:, None])
    hops = np.arange(layout.num_ranks - 1)
    first_chunks = np.arange(len(rings))[:, None] * num_pieces

    def chunks(number: int) -> Ints:
        piece = number - hops
        return np.where((piece >= 0) & (piece < num_pieces), first_chunks + piece, -1).reshape(-1, 1)

    phase = Phase(pattern, len(hops) + num_pieces - 1, False, chunks)
    return Algorithm((phase,), 1, tuple(np.repeat(parts, num_pieces).tolist()))


def _ring_over_all(kind: str, layout: Layout) -> Algorithm:
    rings, size = layout.rings(), layout.num_ranks
    slots = np.arange(size * len(rings)).reshape(size, len(rings)).T[None, :, :, None]
    phases = _of_kind(kind, _ring(np.arange(size)[None], rings, slots, 1.0))
    return Algorithm(tuple(phases), size, tuple(share / size for _, share in rings))


def _halving_over_all(kind: str, size: int) -> Algorithm:
    """Over the largest power of two; the ranks beyond it hand their data in before, and get the result after."""
    power = 1 << (size.bit_length() - 1)
    inner, outer = np.arange(size - power), np.arange(power, size)
    phases = _of_kind(kind, _halving(np.arange(power)[None], np.arange(power)[None, :, None], 1.0))

    def everything(_: int) -> Ints:
        return np.tile(np.arange(power), (len(outer), 1))

    if len(outer):
        fold, unfold = (
            _round(outer, inner, 1.0, everything, adds=True),
            _round(inner, outer, 1.0, everything),
        )
        phases = [fold, *phases, unfold]
    return Algorithm(tuple(phases), power, (1.0 / power,))


def _hierarchical(kind: str, name: str, layout: Layout) -> Algorithm:
    """Inside the nodes, then between ranks at the same place of different nodes, then inside again [3]."""
    num_nodes, size = len(layout.node_sizes), layout.node_sizes[0]
    rings, num_ranks = layout.local_rings, layout.num_ranks
    nodes = np.arange(num_ranks).reshape(num_nodes, size)
    by_place = np.arange(num_ranks * len(rings)).reshape(num_nodes, size, -1).transpose(1, 0, 2)
    scatter, gather = _ring(nodes, rings, by_place.transpose(2, 0, 1)[None], 1.0)
    if kind == "broadcast":
        chunks = by_place.reshape(size, -1)
        spread = _round(np.zeros_like(nodes[0, 1:]), nodes[0, 1:], 1.0 / size, _always(chunks[1:]))
        phases = [spread, *_tree(nodes.T, chunks, 1.0 / size)[1], *gather]
    else:
        between = (
            _ring(nodes.T, ((tuple(range(num_nodes)), 1.0),), by_place[:, None], 1.0 / size)
            if name == "hierarchical"
            else _halving(nodes.T, by_place, 1.0 / size)
        )
        phases = _of_kind(kind, (scatter + between[0], between[1] + gather))
    return Algorithm(tuple(phases), num_ranks, tuple(share / num_ranks for _, share in rings))


def _all_to_all(name: str, layout: Layout) -> Algorithm:
    """Straight to the target; or to the rank of the own node at the target's place, then to the target's node [4]."""
    num_ranks = layout.num_ranks

    def between(rows: Ints, share: float, chunks: Callable[[Ints, Ints], Ints]) -> Phase:
        none = np.empty(0, dtype=np.int64)
        pattern = Pattern(none, none, np.array([share]), rows)
        return Phase(pattern, 1, False, lambda _: chunks(pattern.listed().sources, pattern.listed().targets))

    if name == "direct":
        phases = [
            between(np.arange(num_ranks)[None], 1.0 / num_ranks, lambda s, t: (s * num_ranks + t)[:, None])
        ]
    else:
        nodes = np.arange(num_ranks).reshape(len(layout.node_sizes), -1)
        num_nodes, size = nodes.shape
        phases = [
            between(nodes, 1.0 / size, lambda s, t: s[:, None] * num_ranks + nodes.T[t % size]),
            between(nodes.T, 1.0 / num_nodes, lambda s, t: nodes[s // size] * num_ranks + t[:, None]),
        ]
    return Algorithm(tuple(phases), num_ranks, (1.0 / num_ranks,) * num_ranks)
