"""Sends on the links of a cluster: a round lasts until its slowest send has crossed its most loaded link."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from trainyard.cost.collective_program import Ints, Pattern, list_pairs
from trainyard.hardware.cluster import Cluster
from trainyard.hardware.routing import RouteTable

__all__ = ["Placed", "TimedRounds", "time_rounds"]

Floats = npt.NDArray[np.float64]
Placed = tuple[Ints, Mapping[Pattern, int]]
"""Groups that send the same: ranks by position, shape ``(num_groups, num_ranks)``, and how often each pattern comes."""

_LISTED_PAIRS = 4096  # more pairs than this are counted by node instead of listed


@dataclass(frozen=True, eq=False)
class TimedRounds:
    """Time of every pattern by the bytes: the largest of ``latency_s + s_per_byte * num_bytes``.

    Parameters
    ----------
    latency_s, s_per_byte, link
        Of each send of the groups (or each distinct kind of them): latency of its route, seconds for each byte
        of the whole collective on the most loaded link of its route, and that link; shape ``(num_sends,)``.
    starts
        First send of each pattern.
    repeats
        How often each pattern comes.
    """

    latency_s: Floats
    s_per_byte: Floats
    link: Ints
    starts: Ints
    repeats: Floats

    def seconds(self, num_bytes: float) -> float:
        """Seconds of all rounds for data of `num_bytes`."""
        return float(self._rounds_s(num_bytes) @ self.repeats)

    def _rounds_s(self, num_bytes: float) -> Floats:
        return np.asarray(np.maximum.reduceat(self.latency_s + self.s_per_byte * num_bytes, self.starts))

    def bottleneck(self, num_bytes: float) -> int:
        """The link that bounds the pattern that takes longest in total."""
        worst = int(np.argmax(self._rounds_s(num_bytes) * self.repeats))
        stop = self.starts[worst + 1] if worst + 1 < len(self.starts) else len(self.link)
        sends = slice(self.starts[worst], stop)
        return int(self.link[sends][np.argmax(self.latency_s[sends] + self.s_per_byte[sends] * num_bytes)])


def time_rounds(cluster: Cluster, own: Placed, others: Sequence[Placed] = ()) -> TimedRounds:
    """Time the rounds of some groups while others run theirs.

    The sends of all groups add to the load of the links. The rounds of the first pattern of these groups meet those of
    the first pattern of the others, and so on. Patterns of others beyond the last of these are not seen.

    Parameters
    ----------
    cluster
        The cluster.
    own
        Groups of one shape; the time is that of their sends.
    others
        Groups of other shapes at the same time.

    Returns
    -------
    TimedRounds
        As a function of the bytes.
    """
    table = cluster.routes
    ranks, repeats = own
    around = [(other_ranks, list(patterns)) for other_ranks, patterns in others]
    parts = [
        _time_pattern(table, bool(cluster.fabric.edges), ranks, pattern, [
            (other_ranks, patterns[number]) for other_ranks, patterns in around if number < len(patterns)
        ])
        for number, pattern in enumerate(repeats)
    ]  # fmt: skip
    counts = np.array([len(latency) for latency, _, _ in parts])
    return TimedRounds(
        np.concatenate([latency for latency, _, _ in parts]),
        np.concatenate([slope for _, slope, _ in parts]),
        np.concatenate([link for _, _, link in parts]),
        np.concatenate([[0], np.cumsum(counts)[:-1]]).astype(np.int64),
        np.array(list(repeats.values()), dtype=np.float64),
    )


def _time_pattern(
    table: RouteTable, has_fabric: bool, ranks: Ints, pattern: Pattern, others: Sequence[tuple[Ints, Pattern]]
) -> tuple[Floats, Floats, Ints]:
    """Latency, seconds a byte and worst link of the sends of `ranks`."""
    load = np.zeros(table.no_link + 1)
    own: Ints | None = None
    for row, (groups, sending) in enumerate([(ranks, pattern), *others]):
        if _is_counted(groups, sending, has_fabric):
            _add_pairs_by_node(table, _pair_rows(groups, sending), float(sending.shares[0]), load)
            continue
        routes, shares = _listed(table, groups, sending)
        load += np.bincount(
            routes.ravel(), weights=np.repeat(shares, routes.shape[1]), minlength=table.no_link + 1
        )
        own = routes if row == 0 else own
    s_per_byte = load / table.bandwidth_bytes_per_s
    if own is None:
        return _pairs_by_node(table, _pair_rows(ranks, pattern), s_per_byte)
    return _along(table, own, s_per_byte)


def _along(table: RouteTable, routes: Ints, s_per_byte: Floats) -> tuple[Floats, Floats, Ints]:
    """Latency, seconds a byte and worst link of each route."""
    slopes = s_per_byte[routes]
    worst = slopes.argmax(axis=1)
    index = np.arange(len(routes))
    return table.latency_s[routes].sum(axis=1), slopes[index, worst], routes[index, worst]


def _pair_rows(groups: Ints, pattern: Pattern) -> Ints:
    """Ranks of the rows of an all-pairs pattern in every group."""
    assert pattern.all_pairs is not None
    return groups[:, pattern.all_pairs].reshape(-1, pattern.all_pairs.shape[1])


def _is_counted(groups: Ints, pattern: Pattern, has_fabric: bool) -> bool:
    """Return whether the sends are too many to list; over a fabric each pair has a path of its own and is listed."""
    rows = pattern.all_pairs
    return rows is not None and not has_fabric and len(groups) * rows.size * rows.shape[1] > _LISTED_PAIRS


def _listed(table: RouteTable, groups: Ints, pattern: Pattern) -> tuple[Ints, Floats]:
    """Routes and shares of all sends of a pattern in all groups."""
    sends = pattern.listed()
    sources, targets = groups[:, sends.sources].ravel(), groups[:, sends.targets].ravel()
    return table.of_pairs(sources, targets), np.tile(sends.shares, len(groups))


def _inside_pairs(table: RouteTable, rows: Ints) -> tuple[Ints, Ints, Ints]:
    """Pairs of each row that are in one node, and for every member how many of its row are in other nodes."""
    keys = np.arange(len(rows))[:, None] * (int(table.node_of.max()) + 1) + table.node_of[rows]
    flat = keys.ravel()
    by_key = np.argsort(flat, kind="stable")
    _, where, counts = np.unique(flat, return_inverse=True, return_counts=True)
    outside = rows.shape[1] - counts[where]
    pairs = [
        list_pairs(rows.ravel()[by_key[(counts[where] == size)[by_key]]].reshape(-1, size))
        for size in np.unique(counts)
        if size > 1
    ]
    none = [np.empty(0, dtype=np.int64)]
    sources = np.concatenate([source for source, _ in pairs] or none)
    targets = np.concatenate([target for _, target in pairs] or none)
    return sources, targets, outside


def _add_pairs_by_node(table: RouteTable, rows: Ints, share: float, load: Floats) -> None:
    """Add the load of all pairs of each row: inside nodes pair by pair, between them member by member."""
    sources, targets, outside = _inside_pairs(table, rows)
    members = rows.ravel()
    inside = table.of_pairs(sources, targets)
    for routes, weight in (
        (inside, np.full(len(inside), share)),
        (table.out_of(members), share * outside),
        (table.into(members), share * outside),
    ):
        load += np.bincount(routes.ravel(), weights=np.repeat(weight, routes.shape[1]), minlength=len(load))


def _pairs_by_node(table: RouteTable, rows: Ints, s_per_byte: Floats) -> tuple[Floats, Floats, Ints]:
    """Latency, seconds a byte and worst link of the distinct kinds of sends among all pairs of each row."""
    sources, targets, outside = _inside_pairs(table, rows)
    inside = _along(table, table.of_pairs(sources, targets), s_per_byte) if len(sources) else None
    parts = [inside] if inside else []
    members = rows.ravel()[outside > 0]
    if len(members):
        out = _along(table, table.out_of(members), s_per_byte)
        into = _along(table, table.into(members), s_per_byte)
        out_kinds = np.unique(np.column_stack(out[:2]), axis=0, return_index=True)[1]
        into_kinds = np.unique(np.column_stack(into[:2]), axis=0, return_index=True)[1]
        a, b = (index.ravel() for index in np.meshgrid(out_kinds, into_kinds))
        out_is_worse = out[1][a] >= into[1][b]
        parts.append(
            (
                out[0][a] + into[0][b],
                np.maximum(out[1][a], into[1][b]),
                np.where(out_is_worse, out[2][a], into[2][b]),
            )
        )
    latency, slope, link = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    return latency, slope, link
