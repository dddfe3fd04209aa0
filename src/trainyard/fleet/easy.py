"""EASY backfilling: a later job may run before the first that waits if it does not delay it.

Jobs start in the order of their arrival. The first that finds no place gets a reservation: the earliest time at which it
will find one, if all that run take as long as their users allowed them. A later job that finds a place now is started if
it is over by then, or lies on devices that the first will not need then. Jobs without a limit are taken to run for ever.
Of several types of devices, the first job that finds no place on types that are not reserved gets a reservation, too.

It is what Slurm's backfilling does for the first job that waits; Slurm's goes on and makes reservations for others.

References
----------
D. A. Lifka, "The ANL/IBM SP Scheduling System", JSSPP 1995.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from trainyard.fleet.place.auxiliary import needs_of
from trainyard.fleet.place.room import Room
from trainyard.fleet.policy import Reasons, Targets
from trainyard.fleet.site import Site
from trainyard.fleet.snapshot import Ints, Need, Snapshot
from trainyard.fleet.traits import EQUAL_WORKERS, Wish

_INF = float("inf")


class _Asked(NamedTuple):
    """What `Room.find` has to know of a job."""

    num_devices: int
    allowed: int
    needs: tuple[float, float]
    gang: tuple[int, ...]


class _Stay(NamedTuple):
    """A job on devices: until when at the latest, how many of every node, and what it needs with each."""

    end_s: float
    on: Ints
    needs: tuple[float, float]


@dataclass
class _Reservation:
    """For a job that waits: when it will find a place, and all that is free then, with that place."""

    asked: _Asked
    start_s: float
    room: Room

    def without(self, on: Ints, needs: tuple[float, float]) -> Room | None:
        """What is free then if a later job lies there; None if the job has no place beside it."""
        room = self.room.copy()
        room.take(on, needs)
        return None if room.find(*self.asked) is None else room


@dataclass(frozen=True)
class Easy:
    """See the module; it takes nothing away from jobs that run, but looks at them."""

    needs: frozenset[Need] = field(default=frozenset({"limit"}), init=False)
    preempts: bool = field(default=True, init=False)
    heeds: frozenset[Wish] = field(default=EQUAL_WORKERS, init=False)

    def start(self, site: Site) -> None:
        """It remembers nothing."""

    def decide(self, snapshot: Snapshot, state: None) -> tuple[Targets, None]:
        """Those that run, then those that start, in the order of their arrival."""
        running, waiting = np.flatnonzero(snapshot.held > 0), np.flatnonzero(snapshot.held == 0)
        plan = _Plan(snapshot, running)
        starting = [number for number in waiting.tolist() if plan.starts(number)]
        order = np.concatenate((running, np.array(starting, np.int64)))
        return Targets(order, stands=True, reasons=Reasons(np.setdiff1d(waiting, order), plan.why)), state


class _Plan:
    """Who starts now, played through job by job."""

    def __init__(self, snapshot: Snapshot, running: Ints) -> None:
        self.snapshot, self.room = snapshot, snapshot.room()
        self.reserved: list[_Reservation] = []
        self.first: dict[int, float] = {}
        num_nodes = len(snapshot.site.hosts)
        self.stays = [
            _Stay(self._end_s(number), on, needs_of(snapshot.job(number)))
            for number in running.tolist()
            for grant in (snapshot.grants[number],)
            if grant is not None
            for on in (np.bincount(snapshot.site.node_of[list(grant.devices)], minlength=num_nodes),)
        ]

    def _end_s(self, number: int) -> float:
        """When a job is over at the latest, from now on if it waits."""
        limit_s, now_s = self.snapshot.job(number).limit_s, self.snapshot.now_s
        begin_s = self.snapshot.first_start_s[number]
        return max(
            now_s, (now_s if np.isnan(begin_s) else float(begin_s)) + (_INF if limit_s is None else limit_s)
        )

    def starts(self, number: int) -> bool:
        """Whether a job that waits is to start now; if not, it may get a reservation."""
        job, allowed = self.snapshot.job(number), int(self.snapshot.allowed[number])
        asked = _Asked(job.num_devices, allowed, needs_of(job), job.gang)
        before = [each for each in self.reserved if each.asked.allowed & allowed]
        on, end_s = self.room.find(*asked), self._end_s(number)
        if on is None:
            if not before:
                self._reserve(number, asked)
            return False
        late = [each for each in before if end_s > each.start_s]
        rooms = [each.without(on, asked.needs) for each in late]
        if None in rooms:
            return False
        for each, room in zip(late, rooms, strict=True):
            assert room is not None
            each.room = room
        self.room.take(on, asked.needs)
        self.stays.append(_Stay(end_s, on, asked.needs))
        return True

    def _reserve(self, number: int, asked: _Asked) -> None:
        room, start_s = self.room.copy(), _INF
        for stay in sorted(self.stays, key=lambda stay: stay.end_s):
            room.give(stay.on, stay.needs)
            if room.find(*asked) is not None:
                start_s = stay.end_s
                break
        self.first[number] = start_s
        self.reserved.append(_Reservation(asked, start_s, room))

    def why(self, number: int) -> str:
        """Why a job waits."""
        if number not in self.first:
            return "it finds no place, or would delay the first job that waits"
        in_s = self.first[number] - self.snapshot.now_s
        when = f"in {in_s:.0f} s at the latest" if in_s < _INF else "when jobs without a limit have ended"
        return f"it is the first that finds no place; one is kept for it {when}"
