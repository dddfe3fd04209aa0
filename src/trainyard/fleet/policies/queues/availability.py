"""Free devices of every node over time, in spans between the moments at which they change."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy import empty, int64, zeros

from trainyard.compiling import compiled, lean
from trainyard.fleet.place.auxiliary import needs_of
from trainyard.fleet.place.find import (
    FREE,
    LEFT,
    SHARE,
    TYPE,
    are_in_racks,
    change_auxiliary_of,
    find_place,
)
from trainyard.fleet.place.trial import Placeable, TrialPlacement
from trainyard.fleet.policies.queues.backfill_jobs import QueuedJob, QueuedJobs
from trainyard.fleet.snapshot import Floats, Ints

__all__ = ["Availability", "Release", "Slot"]

_INF = float("inf")


class Slot(NamedTuple):
    """A time and place for a job.

    Attributes
    ----------
    span : index of the span with which it begins.
    on : devices of every node.
    is_now : whether the devices are free now. A slot may begin now and wait for jobs that run beyond their limits.
    """

    span: int
    start_s: float
    on: Ints
    is_now: bool


class Release(NamedTuple):
    """Devices of every node that a job gives back at its end."""

    end_s: float
    on: Ints
    job: Placeable


class Availability:
    """Free devices, processors and memory of every node in spans of time; the first span begins now.

    Parameters
    ----------
    free : devices that are free now.
    moments_s : further moments at which a span begins, beside those at which devices become free.
    releases : of the jobs that have devices now.
    """

    def __init__(
        self, free: TrialPlacement, now_s: float, moments_s: list[float], releases: Iterable[Release]
    ) -> None:
        self._how_of, (self._nodes, self._auxiliary, self._members) = free.how_of, free.tables
        ending: dict[float, list[Release]] = {moment_s: [] for moment_s in moments_s}
        for release in releases:
            ending.setdefault(release.end_s, []).append(release)
        later_s = sorted(ending.keys() - {_INF})
        self._times_s: Floats = np.array([now_s, *later_s])
        # All spans at once: to insert them one by one takes the square of the time.
        self._free: Ints = np.repeat(self._nodes[FREE][None], len(self._times_s), axis=0)
        self._left: Floats = np.repeat(self._auxiliary[LEFT][None], len(self._times_s), axis=0)
        for span, end_s in enumerate(later_s, 1):
            self._free[span], self._left[span] = self._free[span - 1], self._left[span - 1]
            for _, on, job in ending[end_s]:
                self._change(span, span + 1, on, job, -1)

    def _split(self, moment_s: float, first: int) -> int:
        """Split the span at a moment; return the index of the span that begins there, at least ``first``.

        The index is the number of spans if the moment is infinite.
        """
        times_s = self._times_s
        span = first + int(np.searchsorted(times_s[first:], moment_s))
        if moment_s < _INF and (span == len(times_s) or times_s[span] > moment_s):
            self._times_s = np.insert(times_s, span, moment_s)
            self._free = np.insert(self._free, span, self._free[span - 1], axis=0)
            self._left = np.insert(self._left, span, self._left[span - 1], axis=0)
        return span

    def _change(self, first: int, until: int, on: Ints, job: Placeable, sign: int) -> None:
        """Note that a job takes devices (1) or gives them back (-1) in some spans."""
        _count(self._free, self._left, first, until, on, np.array(needs_of(job)), sign, self._auxiliary)

    def occupy(self, slot: Slot, limit_s: float, job: Placeable) -> None:
        """Take the devices of a slot for the time limit of its job."""
        until = self._split(slot.start_s + limit_s, slot.span + 1)
        self._change(slot.span, until, slot.on, job, 1)

    def earliest(self, job: QueuedJob, jobs: QueuedJobs, from_s: float, may_be_now: bool) -> Slot | None:
        """Find the earliest slot of a job that begins at a time or later; None if it has none.

        Parameters
        ----------
        may_be_now : whether the slot may begin with the first span.
        """
        first = 0 if may_be_now else 1 + int(np.searchsorted(self._times_s[1:], from_s))
        closed = list(job.closed)
        bounds_s = np.array(
            [(jobs.reservations[row].from_s, jobs.reservations[row].until_s) for row in closed]
        )
        usable = self._members[job.partition] if job.partition else np.zeros(0, np.int64)
        asked = (
            job.job.num_devices, job.allowed, job.nodes, usable, self._how_of(job.job), np.array(needs_of(job.job)),
        )  # fmt: skip
        span, on = _earliest(
            first, self._times_s, self._free, self._left, job.limit_s, bounds_s.reshape(-1, 2), jobs.reserved[closed],
            asked, self._nodes, self._auxiliary,
        )  # fmt: skip
        return Slot(int(span), float(self._times_s[span]), on, span == 0) if len(on) else None


@lean
def _count(free, left, first, until, on, need, sign, auxiliary):  # type: ignore[no-untyped-def]
    """Take (1) or free (-1) devices of every node, with their processors and memory, in some spans."""
    for span in range(first, until):
        for node in range(len(on)):
            free[span, node] -= sign * on[node]
            if left.shape[2] and on[node]:
                change_auxiliary_of(node, on[node], need, -sign, left[span], auxiliary[SHARE])


@compiled
def _earliest(  # type: ignore[no-untyped-def]
    first, times_s, free, left, limit_s, closed_s, closed_nodes, asked, nodes, auxiliary
):
    """Return the first span from ``first`` on in which a job fits, and its devices of every node; -1 and none else.

    Parameters
    ----------
    closed_s, closed_nodes : begin and end of each reservation for others, and 1 for each of its nodes.
    """
    wanted, bits, own, usable, how, need = asked
    per_node, aux, has_racks = nodes.copy(), auxiliary.copy(), are_in_racks(nodes)
    by_type = zeros(nodes[TYPE].max() + 1, int64)
    span = first
    while span < len(times_s):
        end_s = times_s[span] + limit_s
        short = _least_free(span, end_s, wanted, own, times_s, free, left, per_node, aux)
        if short >= 0:
            span = short + 1
            continue
        by_type[:] = 0
        for node in range(len(own)):
            by_type[per_node[TYPE, node]] += per_node[FREE, node]
        may_have = _without_closed(usable, times_s[span], end_s, closed_s, closed_nodes)
        on = find_place(wanted, bits, may_have, how, need, per_node, by_type, aux, has_racks)
        if len(on):
            return span, on
        span += 1
    return -1, empty(0, int64)


@lean
def _least_free(span, end_s, wanted, own, times_s, free, left, per_node, aux):  # type: ignore[no-untyped-def]
    """Write the devices free from a span until a time; return the first span with too few of them, or -1."""
    for node in range(len(own)):
        per_node[FREE, node] = free[span, node]
        for what in range(2 if aux.shape[1] else 0):
            aux[what, node] = left[span, what, node]
    for until in range(span, len(times_s)):
        if until > span and times_s[until] >= end_s:
            break
        total = 0
        for node in range(len(own)):
            total += own[node] * free[until, node]
            per_node[FREE, node] = min(per_node[FREE, node], free[until, node])
            for what in range(2 if aux.shape[1] else 0):
                aux[what, node] = min(aux[what, node], left[until, what, node])
        if total < wanted:
            return until
    return -1


@compiled
def _without_closed(usable, start_s, end_s, closed_s, closed_nodes):  # type: ignore[no-untyped-def]
    """Return usable nodes without those reserved for others in a time; empty if all nodes are usable."""
    found = usable
    for row in range(len(closed_s)):
        if start_s < closed_s[row, 1] and closed_s[row, 0] < end_s:
            open_nodes = 1 - closed_nodes[row]
            found = found * open_nodes if len(found) else open_nodes
    return found
