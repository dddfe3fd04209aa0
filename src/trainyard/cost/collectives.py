"""Seconds of a collective on a group of ranks of a cluster.

Each algorithm is a program of sends (`collective_algorithms`). A round of it costs the latency of its routes plus the
bytes on its most loaded link. The fastest algorithm is taken. On a measured machine the measured curves are used
instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from trainyard.cost.collective_algorithms import ALGORITHMS, KINDS, algorithm_of, algorithms_for
from trainyard.cost.collective_layout import Layout, group_layout
from trainyard.cost.collective_links import time_rounds
from trainyard.cost.collective_program import CollectiveProgram, Send, check_program
from trainyard.hardware.cluster import Cluster
from trainyard.hardware.errors import HardwareError, unknown_name
from trainyard.hardware.profile import MachineProfile

__all__ = [
    "ALGORITHMS",
    "KINDS",
    "CollectiveCost",
    "CollectiveProgram",
    "Send",
    "check_program",
    "collective_cost",
    "collective_costs",
    "collective_program",
]

Groups = tuple[tuple[int, ...], ...]

_PIECES = tuple(2**i for i in range(11))  # of a chain; more pieces than this are smaller than a packet


@dataclass(frozen=True)
class CollectiveCost:
    """The cost of a collective.

    Parameters
    ----------
    seconds
        From the call to the end on the last rank of the slowest group.
    algorithm
        The one that takes that long, the fastest.
    bottleneck
        Name of the link that bounds it; empty if nothing is sent.
    num_pieces
        Pieces that a chain is cut into; 1 for other algorithms.
    moving_s
        Of the seconds those that follow from the number of bytes: for so long it fills the links that bound it. None
        where the time was measured.
    """

    seconds: float
    algorithm: str
    bottleneck: str
    num_pieces: int = 1
    moving_s: float = 0.0


def collective_cost(
    cluster: Cluster, kind: str, ranks: Sequence[int], num_bytes: float, groups: Groups = ()
) -> CollectiveCost:
    """Seconds of a collective with its fastest algorithm.

    Parameters
    ----------
    cluster
        The cluster.
    kind
        One of `KINDS`.
    ranks
        The group; the first is the root of a broadcast, and a send goes from the first of two to the second.
    num_bytes
        Size on each rank: of the whole tensor for all_reduce, broadcast and send, of the gathered one for
        all_gather, of the input for reduce_scatter and all_to_all.
    groups
        Groups that run the same collective on as many bytes at the same time. They share links with this one, and
        the cost is that of the slowest. The group itself may be among them.

    Returns
    -------
    CollectiveCost
        Zero seconds for one rank.

    Raises
    ------
    HardwareError
        If the kind is not known, a rank is not in the cluster or twice in a group, or the size is negative.
    """
    costs = collective_costs(cluster, kind, ranks, num_bytes, groups)
    return min(costs, key=lambda cost: cost.seconds)


def collective_costs(
    cluster: Cluster, kind: str, ranks: Sequence[int], num_bytes: float, groups: Groups = ()
) -> tuple[CollectiveCost, ...]:
    """Cost with every algorithm that does it; parameters and errors as in `collective_cost`.

    Returns
    -------
    tuple of CollectiveCost
        At least one.
    """
    group = tuple(ranks)
    _check(cluster, kind, group, num_bytes)
    if len(group) == 1:
        return (CollectiveCost(0.0, "none", ""),)
    others = [tuple(other) for other in groups if len(other) > 1 and not _is_same(kind, other, group)]
    for other in others:
        _check(cluster, kind, other, num_bytes)
    if cluster.profile is not None:
        num_others = len(set().union(*others) - set(group))
        seconds = _measured_s(cluster.profile, kind, len(group), num_bytes, num_others)
        return (CollectiveCost(seconds, "measured", cluster.links[0].name),)
    by_layout = _by_layout(cluster, [group, *others])
    devices = {cluster.devices[rank] for rank in group}.union(
        *({cluster.devices[r] for r in o} for o in others)
    )
    launch_s = max(device.collective_launch_s for device in devices)

    def cost(name: str, num_pieces: int) -> CollectiveCost:
        running = [
            (rows, algorithm_of(kind, _same_or_first(kind, name, layout), layout, num_pieces).repeats())
            for layout, rows in by_layout.items()
        ]
        timed = (
            time_rounds(cluster, own, [other for other in running if other is not own]) for own in running
        )
        rounds = max(timed, key=lambda each: each.seconds(num_bytes))
        link = cluster.links[rounds.bottleneck(num_bytes)].name
        rounds_s = rounds.seconds(num_bytes)
        return CollectiveCost(launch_s + rounds_s, name, link, num_pieces, rounds_s - rounds.seconds(0))

    return tuple(
        min(
            (cost(name, num_pieces) for num_pieces in (_PIECES if name == "chain" else (1,))),
            key=lambda with_pieces: with_pieces.seconds,
        )
        for name in algorithms_for(kind, next(iter(by_layout)))
    )


def _check(cluster: Cluster, kind: str, ranks: tuple[int, ...], num_bytes: float) -> None:
    if kind not in KINDS:
        raise unknown_name("collective", kind, KINDS, "use one of them")
    if not ranks or len(set(ranks)) != len(ranks) or (kind == "send" and len(ranks) > 2):
        raise HardwareError(
            f"a {kind} among ranks {ranks[:8]}; allowed: one or more different ranks, two for a send; "
            "remove repetitions"
        )
    if not num_bytes >= 0:
        raise HardwareError(f"a {kind} of {num_bytes} bytes; allowed: zero or more")
    cluster.check_ranks(ranks)


def _is_same(kind: str, group: Sequence[int], other: Sequence[int]) -> bool:
    """Return whether two groups are one: of the same ranks and, where it matters, with the same first one."""
    return set(group) == set(other) and (kind not in ("broadcast", "send") or group[0] == other[0])


def _measured_s(profile: MachineProfile, kind: str, size: int, num_bytes: float, num_others: int) -> float:
    """Measured seconds of a group; others at the same time slow it once there are more processes than cores."""
    alone = max(1.0, size / profile.num_cores)
    together = max(1.0, (size + num_others) / profile.num_cores)
    return profile.collective_s(kind, size, num_bytes) * together / alone


def _by_layout(cluster: Cluster, groups: Sequence[tuple[int, ...]]) -> dict[Layout, np.ndarray]:
    """Groups of the same shape together: their ranks by position, shape ``(num_groups, num_ranks)``."""
    rows: dict[Layout, list[np.ndarray]] = {}
    for group in groups:
        order, layout = group_layout(cluster, group)
        rows.setdefault(layout, []).append(order)
    return {layout: np.stack(orders) for layout, orders in rows.items()}


def _same_or_first(kind: str, algorithm: str, layout: Layout) -> str:
    """The algorithm of a group of some shape: the same one if it can, else the plainest."""
    possible = algorithms_for(kind, layout)
    return algorithm if algorithm in possible else possible[0]


def collective_program(
    cluster: Cluster, kind: str, algorithm: str, ranks: Sequence[int], num_bytes: float, num_pieces: int = 1
) -> CollectiveProgram:
    """The program of sends of a collective on ranks of a cluster.

    Parameters
    ----------
    cluster, kind, ranks, num_bytes
        As in `collective_cost`.
    algorithm
        One of ``ALGORITHMS[kind]`` that does the kind on this group.
    num_pieces
        Pieces of a chain.

    Returns
    -------
    CollectiveProgram
        Its positions follow the nodes, not the order of `ranks`; the root is the first.

    Raises
    ------
    HardwareError
        As `collective_cost`, and if the algorithm does not do this kind on this group.
    """
    group = tuple(ranks)
    _check(cluster, kind, group, num_bytes)
    order, layout = group_layout(cluster, group)
    possible = algorithms_for(kind, layout) if len(group) > 1 else ()
    if algorithm not in possible:
        raise unknown_name(f"{kind} algorithm for this group", algorithm, possible, "use one of them")
    return algorithm_of(kind, algorithm, layout, num_pieces).program(
        kind, algorithm, order.tolist(), num_bytes
    )
