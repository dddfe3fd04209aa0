"""Algorithms for collectives as programs of sends over positions 0 ... n-1.

Data is cut into chunks, one owned by each position (several where there are several rings). The programs are
what the closed forms of `collective_rounds` are checked against.

References
----------
.. [1] Thakur, Rabenseifner, Gropp, "Optimization of Collective Communication Operations in MPICH", IJHPCA
   2005. .. [2] Patarasuk, Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", JPDC
   2009. .. [3] Hwang et al., "Tutel: Adaptive Mixture-of-Experts at Scale", MLSys 2023 (two-dimensional
   all-to-all).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from trainyard.cost.collective_layout import Layout, Ring
from trainyard.cost.collective_program import CollectiveProgram, Send
from trainyard.cost.collective_rounds import chain_orders, supports, tree_levels

__all__ = ["build_program"]

Rounds = list[list[Send]]
ChunkOf = Callable[[int, int], tuple[int, ...]]
"""Chunks of a slot (an owner, or the owners at one place of every node) that travel on a ring, by index."""


def _send(source: int, target: int, chunks: Iterable[int], sizes: Sequence[float], adds: bool) -> Send:
    carried = tuple(chunks)
    return Send(source, target, sum(sizes[chunk] for chunk in carried), carried, adds)


def _ring(
    rings: Sequence[Ring], members: Sequence[int], chunk_of: ChunkOf, sizes: Sequence[float], adds: bool
) -> Rounds:
    """Reduce-scatter (adds) or all-gather over rings of `members`; slot ``s`` ends at or comes from member "
    "``s``."""
    size = len(members)
    rounds: Rounds = []
    for step in range(size - 1):
        sends = []
        for number, (order, _) in enumerate(rings):
            for index, slot in enumerate(order):
                travelling = order[(index - step - (1 if adds else 0)) % size]
                target = members[order[(index + 1) % size]]
                sends.append(_send(members[slot], target, chunk_of(travelling, number), sizes, adds))
        rounds.append(sends)
    return rounds


def _halving(
    members: Sequence[int], chunks: Callable[[int], tuple[int, ...]], sizes: Sequence[float]
) -> Rounds:
    """Reduce-scatter by recursive halving; near partners first, so that far ones get the small messages."""
    size = len(members)
    rounds: Rounds = []
    for bit in range(size.bit_length() - 1):
        sends = []
        for position in range(size):
            partner = position ^ (1 << bit)
            # What is still mine agrees with me in the lower bits; the partner gets the half that agrees with
            # it.
            mask = (1 << (bit + 1)) - 1
            slots = [slot for slot in range(size) if slot & mask == partner & mask]
            carried = [chunk for slot in slots for chunk in chunks(slot)]
            sends.append(_send(members[position], members[partner], carried, sizes, True))
        rounds.append(sends)
    return rounds


def _doubling(
    members: Sequence[int], chunks: Callable[[int], tuple[int, ...]], sizes: Sequence[float]
) -> Rounds:
    """All-gather by recursive doubling: halving backwards."""
    return [
        [Send(send.target_rank, send.source_rank, send.num_bytes, send.chunks, False) for send in sends]
        for sends in reversed(_halving(members, chunks, sizes))
    ]


def _merge(parallel: Sequence[Rounds]) -> Rounds:
    """Programs of different members side by side."""
    return [[send for rounds in parallel for send in rounds[step]] for step in range(len(parallel[0]))]


def _flat(kind: str, algorithm: str, layout: Layout, sizes: Sequence[float]) -> Rounds:
    """Ring, halving-doubling and direct programs over the whole group."""
    size = layout.num_ranks
    members, rings = range(size), layout.rings()
    if algorithm == "ring":
        num_rings = len(rings)

        def on_ring(slot: int, ring: int) -> tuple[int, ...]:
            return (slot * num_rings + ring,)

        scatter = _ring(rings, members, on_ring, sizes, True) if kind != "all_gather" else []
        gather = _ring(rings, members, on_ring, sizes, False) if kind != "reduce_scatter" else []
        return scatter + gather
    if algorithm == "halving_doubling":
        power = 1 << (size.bit_length() - 1)
        everything = range(len(sizes))
        fold = [[_send(p, p - power, everything, sizes, True) for p in range(power, size)]]
        unfold = [[_send(p - power, p, everything, sizes, False) for p in range(power, size)]]
        outer = size > power
        scatter = _halving(range(power), lambda slot: (slot,), sizes) if kind != "all_gather" else []
        gather = _doubling(range(power), lambda slot: (slot,), sizes) if kind != "reduce_scatter" else []
        return (fold if outer else []) + scatter + gather + (unfold if outer else [])
    if kind == "send":
        return [[_send(0, 1, (0,), sizes, False)]]
    return [[_send(s, t, (s * size + t,), sizes, False) for s in members for t in members if s != t]]


def _tree(kind: str, members: Sequence[int], chunks: Sequence[int], sizes: Sequence[float]) -> Rounds:
    """Up a binary heap and down again (all_reduce), or only down (broadcast); one round for each level."""
    down = [
        [_send(members[parent], members[child], chunks, sizes, False) for parent, child in level]
        for level in tree_levels(len(members))
    ]
    if kind == "broadcast":
        return down
    up = [
        [_send(send.target_rank, send.source_rank, send.chunks, sizes, True) for send in sends]
        for sends in reversed(down)
    ]
    return up + down


def _chain(layout: Layout, num_pieces: int, sizes: Sequence[float]) -> Rounds:
    """Broadcast down a chain on every ring, one piece behind the other."""
    chains = chain_orders(layout)
    hops = range(layout.num_ranks - 1)
    return [
        [
            _send(order[hop], order[hop + 1], (number * num_pieces + step - hop,), sizes, False)
            for number, (order, _) in enumerate(chains)
            for hop in hops
            if 0 <= step - hop < num_pieces
        ]
        for step in range(len(hops) + num_pieces - 1)
    ]


def _hierarchical(kind: str, algorithm: str, layout: Layout, sizes: Sequence[float]) -> Rounds:
    """Inside the nodes, then between ranks at the same place of different nodes, then inside again."""
    num_nodes, size = len(layout.node_sizes), layout.node_sizes[0]
    nodes = [range(node * size, (node + 1) * size) for node in range(num_nodes)]
    places = [range(place, num_nodes * size, size) for place in range(size)]
    if kind == "all_to_all":
        return _all_to_all_in_two(nodes, places, sizes)
    rings, num_rings = layout.local_rings, len(layout.local_rings)

    def of_owner(owner: int) -> tuple[int, ...]:
        return tuple(owner * num_rings + ring for ring in range(num_rings))

    def of_place(place: int, ring: int) -> tuple[int, ...]:
        return tuple(owner * num_rings + ring for owner in places[place])

    gather = _merge([_ring(rings, members, of_place, sizes, False) for members in nodes])
    if kind == "broadcast":
        spread = [
            _send(0, p, [c for o in places[p] for c in of_owner(o)], sizes, False) for p in range(1, size)
        ]
        across = [_tree(kind, m, [c for o in m for c in of_owner(o)], sizes) for m in places]
        return [spread, *_merge(across), *gather]
    scatter = _merge([_ring(rings, members, of_place, sizes, True) for members in nodes])
    between: Rounds = []
    for adds in (True, False):
        if (adds and kind == "all_gather") or (not adds and kind == "reduce_scatter"):
            continue
        between += _merge([_between(algorithm, members, of_owner, sizes, adds) for members in places])
    return (scatter if kind != "all_gather" else []) + between + (gather if kind != "reduce_scatter" else [])


def _between(
    algorithm: str,
    members: range,
    of_owner: Callable[[int], tuple[int, ...]],
    sizes: Sequence[float],
    adds: bool,
) -> Rounds:
    """Reduce-scatter or all-gather between the ranks at one place of every node."""
    if algorithm == "hierarchical_halving_doubling":
        halve = _halving if adds else _doubling
        return halve(members, lambda node: of_owner(members[node]), sizes)
    one_ring: tuple[Ring, ...] = ((tuple(range(len(members))), 1.0),)
    return _ring(one_ring, members, lambda node, _: of_owner(members[node]), sizes, adds)


def _all_to_all_in_two(nodes: Sequence[range], places: Sequence[range], sizes: Sequence[float]) -> Rounds:
    """First to the rank of the own node at the target's place, then to the target's node [3]."""
    num_ranks = len(nodes) * len(places)
    inside = [
        _send(s, t, [s * num_ranks + target for target in places[t - members[0]]], sizes, False)
        for members in nodes
        for s in members
        for t in members
        if s != t
    ]
    size = len(places)
    across = [
        _send(s, t, [source * num_ranks + t for source in nodes[s // size]], sizes, False)
        for members in places
        for s in members
        for t in members
        if s != t
    ]
    return [inside, across]


def build_program(
    kind: str, algorithm: str, layout: Layout, num_bytes: float, num_pieces: int = 1
) -> CollectiveProgram:
    """The program of sends of a collective, over positions.

    Parameters
    ----------
    kind, algorithm
        What and how.
    layout
        Shape of the group.
    num_bytes
        As `collective_cost` counts them.
    num_pieces
        Pieces of a chain.

    Returns
    -------
    CollectiveProgram
        On ranks 0 ... n-1; use `CollectiveProgram.on` to place it.

    Raises
    ------
    ValueError
        If the algorithm does not do this kind on this shape.
    """
    if not supports(kind, algorithm, layout):
        raise ValueError(f"{algorithm} does not do {kind} on {layout}; see `algorithms_for`")
    owner, target, shares = _chunks(kind, algorithm, layout, num_pieces)
    sizes = [share * num_bytes for share in shares]
    if algorithm == "tree":
        rounds = _tree(kind, range(layout.num_ranks), (0,), sizes)
    elif algorithm == "chain":
        rounds = _chain(layout, num_pieces, sizes)
    elif algorithm.startswith("hierarchical"):
        rounds = _hierarchical(kind, algorithm, layout, sizes)
    else:
        rounds = _flat(kind, algorithm, layout, sizes)
    positions = tuple(range(layout.num_ranks))
    return CollectiveProgram(
        kind, algorithm, positions, tuple(sizes), tuple(owner), tuple(target), tuple(map(tuple, rounds))
    )


def _chunks(
    kind: str, algorithm: str, layout: Layout, num_pieces: int
) -> tuple[list[int], list[int], list[float]]:
    """Owner, target and share of the data of each chunk."""
    size = layout.num_ranks
    everyone = list(range(size))
    if kind == "all_to_all":
        return [s for s in everyone for _ in everyone], everyone * size, [1.0 / size] * size**2
    if algorithm in ("tree", "direct"):
        return [0], [0], [1.0]
    if algorithm == "chain":
        shares = [share / num_pieces for _, share in layout.rings() for _ in range(num_pieces)]
        return [0] * len(shares), [0] * len(shares), shares
    if algorithm == "halving_doubling":
        power = 1 << (size.bit_length() - 1)
        return everyone[:power], [0] * power, [1.0 / power] * power
    rings = layout.rings() if algorithm == "ring" else layout.local_rings
    shares = [share / size for _ in everyone for _, share in rings]
    return [slot for slot in everyone for _ in rings], [0] * len(shares), shares
