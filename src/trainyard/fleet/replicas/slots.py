"""Slots: rounds that begin when something happens, as in the program that the authors of ElasticFlow published.

What happens within a slot counts from its end on: jobs that end keep their devices, and those that come are not seen. A
job that starts does no work at first, the longer the more devices it has; the program notes that at its next decision,
and so never of a job that ends before it. Every so many decisions all that runs is renewed, which takes longer and is
noted at once. None of these times is service that a job attains.

References
----------
D. Gu et al., "ElasticFlow: An Elastic Serverless Training Platform for Distributed Deep Learning", ASPLOS 2023;
pkusys/ElasticFlow at 04a0109, ``scheduler.py --schedule=dlas-gpu`` and ``utils.py``, for less than 256 devices.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from trainyard.fleet.allocation import Allocation
from trainyard.fleet.errors import FleetError
from trainyard.fleet.mechanism.allocator import Allocator
from trainyard.fleet.periods import Rounds
from trainyard.fleet.rounds.round_scheduler import RoundScheduler
from trainyard.fleet.snapshot import Ints

_INF = float("inf")


@dataclass(frozen=True)
class Slots(Rounds):
    """A decision whenever something happens, but not within ``round_s`` of the last one.

    Attributes
    ----------
    start_s : time in which a job that gets one device does no work.
    doubling_s : by how much that is longer for twice as many devices.
    renewed_every : decisions after which everything that runs is renewed.
    renewal_s : how much longer than a start that takes.
    """

    round_s: float = 60.0
    start_s: float = 4.0
    doubling_s: float = 2.0
    renewed_every: int = 60
    renewal_s: float = 27.0

    def pause_s(self, num_devices: int) -> float:
        """Time in which a job that starts does no work."""
        return self.start_s + self.doubling_s * float(np.log2(num_devices))

    @property
    def only_simulated(self) -> bool:
        """True: the time of starts is noted a decision late."""
        return True

    @property
    def own_clock(self) -> Callable[[Allocator], SlotScheduler]:
        """Factory of the scheduler that leads a run through these rounds."""
        return partial(SlotScheduler, self)


class SlotScheduler(RoundScheduler):
    """The clock of a run in slots."""

    def __init__(self, slots: Slots, allocator: Allocator) -> None:
        if not allocator.preempts:
            raise FleetError(
                "slots need a policy that takes devices away; others are not asked whenever a slot begins"
            )
        super().__init__(slots.round_s, allocator)
        self.slots = slots
        self._last_s, self._num_before = -_INF, -1
        # Pauses that are not noted yet: row, when the job got its devices, and how long.
        self._owed: list[tuple[int, float, float]] = []

    def next_s(self, now_s: float, event_s: float, arrival_s: float) -> float:
        """When something happens, or the slot ends; without jobs, what the policy wanted to do is void."""
        happens_s = event_s if len(self.table.active) else arrival_s
        return max(happens_s, self._last_s + self.slots.round_s)

    def close(self, now_s: float) -> None:
        """A slot begins."""
        super().close(now_s)
        self._last_s = now_s
        self._num_before += 1

    def is_due(self, now_s: float, last: bool) -> bool:
        """Always: it is why the slot begins."""
        return True

    def allocation(self, rows: Ints, now_s: float, ask: Callable[[Ints], Allocation] | None) -> Allocation:
        """Return the jobs that run in the slot, after the time of the last slot's starts is noted."""
        for row, placed_s, pause_s in self._owed:
            if self.table.held[row] and self.table.placed_s[row] == placed_s:
                self.allocator.set_back(row, pause_s, now_s, 0.0)
                self._take_service(row, pause_s)
        return super().allocation(rows, now_s, ask)

    def open(self, now_s: float) -> list[int]:
        """Note who starts, and renew all if it is time to."""
        table = self.table
        changed = [row for row, *_ in self._owed]
        running: list[int] = table.active[table.held[table.active] > 0].tolist()
        pauses_s = {row: self.slots.pause_s(int(table.held[row])) for row in running}
        self._owed = []
        if self._num_before and self._num_before % self.slots.renewed_every == 0:
            for row, pause_s in pauses_s.items():
                self.allocator.set_back(row, 0.0, now_s, pause_s + self.slots.renewal_s)
                self._take_service(row, pause_s + self.slots.renewal_s)
            return changed + running
        self._owed = [(row, now_s, pauses_s[row]) for row in running if table.placed_s[row] == now_s]
        return changed

    def _take_service(self, row: int, pause_s: float) -> None:
        self.table.attained_s[row] -= pause_s
        self.table.attained_device_s[row] -= pause_s * self.table.held[row]
