"""Why jobs wait, after a decision was brought about: what the policy says of them, else what can be said of every job."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

import numpy as np

from trainyard.fleet.allocation import Allocation, Queue, Reasons
from trainyard.fleet.mechanism.allocator import Allocator
from trainyard.fleet.mechanism.queue import QueueArrays
from trainyard.fleet.place.auxiliary import asks_for_more
from trainyard.fleet.snapshot import Ints

__all__ = ["why_waiting"]


def why_waiting(allocator: Allocator, rows: Ints, allocation: Allocation) -> Mapping[int, str]:
    """Reasons of all jobs that wait, by their number in the snapshot that the allocation is of.

    To be called when it has just been applied, and looked into before anything else changes.
    """
    refused = np.fromiter(allocation.refused, np.int64, len(allocation.refused))
    waiting = np.setdiff1d(np.flatnonzero(allocator.table.held[rows] == 0), refused)
    seen = _Seen(allocator, rows, allocation, waiting)
    return Reasons(waiting, lambda number: allocation.reasons.get(number) or seen.why(number))


class _Seen:
    """Reasons why jobs wait that follow from their order and free devices, without knowing the policy."""

    def __init__(self, allocator: Allocator, rows: Ints, allocation: Allocation, waiting: Ints) -> None:
        self.allocator, self.rows, self.waiting = allocator, rows, waiting
        given = allocation.given
        queue = given if isinstance(given, Queue) else Queue(given.order)
        self.asked, self.backfill = QueueArrays.of(queue), queue.backfill

    @cached_property
    def _places(self) -> dict[int, tuple[int, int]]:
        """Place of every job in the order of those that may run, and among the ones of them that wait, counted from 1."""
        found: dict[int, tuple[int, int]] = {}
        waits = set(self.waiting.tolist())
        for place, number in enumerate(self.asked.order.tolist()):
            if number in waits and (not len(self.asked.counts) or self.asked.counts[place]):
                found.setdefault(number, (place, len(found) + 1))
        return found

    def why(self, number: int) -> str:
        """The reason of a job of which the policy says nothing."""
        place, turn = self._places.get(number, (-1, 0))
        count, free, text = self._asks(number, place)
        if not turn:
            return f"{text}; the policy gives it none for now"
        its_turn = f"it is the {_ordinal(turn)} of those that wait"
        if free < count:
            return f"{text}; {its_turn}"
        if turn > 1 and not self.backfill:
            return f"{text}; {its_turn}, and none starts before the one that is before it"
        if turn > 1:
            return f"{text}; {its_turn}, and they are kept for one before it, or are not where it is to lie"
        job = self.allocator.table.job(int(self.rows[number]))
        if asks_for_more(job, self.allocator.cluster):
            return f"{text}, but not where there are the processors and the memory that it asks for"
        return f"{text}, but not where it is to lie"

    def _asks(self, number: int, place: int) -> tuple[int, int, str]:
        """Devices that a job is to have, or asks for; how many are free of a type that it can use; and both in words."""
        table, cluster, row = self.allocator.table, self.allocator.cluster, int(self.rows[number])
        count, allowed = int(table.num_devices[row]), int(table.allowed[row])
        if place >= 0 and len(self.asked.counts):
            count = int(self.asked.counts[place])
        if place >= 0 and len(self.asked.kinds) and self.asked.kinds[place] >= 0:
            allowed = 1 << int(self.asked.kinds[place])
        kinds = [kind for kind in range(len(cluster.device_types)) if (allowed >> kind) & 1]
        there = self.allocator.free.by_node * cluster.members[table.partition[row]]
        free = max(int(there[cluster.type_of_node == kind].sum()) for kind in kinds)
        of = ""
        if len(cluster.device_types) > 1:
            of = f" of {cluster.device_types[kinds[0]]}" if len(kinds) == 1 else " of one type"
        devices, are = ("device" if count == 1 else "devices"), ("is" if free == 1 else "are")
        return count, free, f"asks for {count} {devices}{of}, {free} {are} free"


def _ordinal(number: int) -> str:
    ending = "th" if number // 10 % 10 == 1 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"
