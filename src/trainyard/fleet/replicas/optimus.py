"""Optimus as in the simulator of the authors of Pollux, who compare with it.

It is told the truth: the time of a unit of work, and the work left from the end of the epoch underway. Jobs fill the
nodes with most devices free.

Qiao et al., "Pollux: Co-adaptive Cluster Scheduling for Goodput-Optimized Deep Learning", OSDI 2021; petuum/adaptdl,
branch osdi21-artifact, ``simulator/optimus.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from trainyard.fleet.policies.optimus import Optimus, Seen, fullest
from trainyard.fleet.snapshot import Ints, Need, Snapshot
from trainyard.fleet.workload.job import Grant


@dataclass(frozen=True)
class OptimusInPollux(Optimus):
    """The policy."""

    @property
    def needs(self) -> frozenset[Need]:
        """The truth includes how much is left."""
        return frozenset({"speed", "length"})

    def gains(
        self, snapshot: Snapshot, seen: list[Seen], then_s: float
    ) -> tuple[list[Seen], Callable[[int, int], float]]:
        """From the truth; of a job in its last epoch, a unit of work is left."""
        unit_s = [dict(s.unit_s) for s in seen]

        def true_s(job: int, num: int) -> float:
            if num not in unit_s[job]:
                speed = snapshot.speed(job, Grant(tuple(range(num))))
                unit_s[job][num] = 1.0 / speed if speed > 0 else float("inf")
            return unit_s[job][num]

        left = []
        for number, job in enumerate(snapshot.jobs):
            rest_s = snapshot.rest_s(number, Grant(tuple(range(job.least_devices))), from_next=True)
            left.append(max(rest_s / true_s(number, job.least_devices), 1.0))
        known = [Seen(times) for times in unit_s]
        return known, lambda job, num: left[job] * (true_s(job, num) - true_s(job, num + 1))

    def place(self, free: Ints, wanted: int) -> dict[int, int]:
        """All of the nodes with most devices free."""
        return fullest(free, wanted)
