"""Gavel as published, of policies of which no output of the authors' program is at hand: the rounds are the program's.

What a policy decides is written down; who runs then, and until when, a plain loop finds out by the rules.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from runs import finished

from trainyard.fleet.allocation import Allocation, TimeFractions
from trainyard.fleet.policies.gavel.policy import Gavel
from trainyard.fleet.policy_wrapper import PolicyWrapper
from trainyard.fleet.replicas.gavel import (
    CostProgram,
    FinishTimeProgram,
    HierarchicalProgram,
    ThroughputProgram,
    WaterFillingProgram,
)
from trainyard.fleet.simulate_fleet import simulate_fleet
from trainyard.fleet.snapshot import Snapshot
from trainyard.fleet.workload.job import Job
from trainyard.fleet.workload.speeds import Speeds
from trainyard.hardware.cluster import Cluster

ROUND_S, HOLD_S, CREDIT_S = 360.0, 1920.0, 180.0
KINDS, ROOM = ("v100", "p100", "k80"), (2, 2, 3)
Fractions = dict[tuple[str, int], float]
"""Of the time, by job and type."""


@dataclass
class Heard(PolicyWrapper):
    """A policy, and what it decided when."""

    decisions: list[tuple[float, Fractions]] = field(default_factory=list)

    def decide(self, snapshot: Snapshot, state: Any) -> tuple[Allocation, Any]:
        allocation, state = super().decide(snapshot, state)
        given = allocation.given
        assert isinstance(given, TimeFractions)
        entries = zip(given.order.tolist(), given.device_type.tolist(), given.fraction.tolist(), strict=True)
        found = {(snapshot.job(number).name, kind): part for number, kind, part in entries}
        self.decisions.append((snapshot.now_s, found))
        return allocation, state


class Plain:
    """The program's loop over rounds, for jobs that are all there at time 0.

    Parameters
    ----------
    decisions : what was decided when; the loop says when one is due.
    """

    def __init__(
        self, jobs: list[Job], speed: dict[str, list[float]], decisions: list[tuple[float, Fractions]]
    ) -> None:
        self.gang = {job.name: job.num_devices for job in jobs}
        self.left = {job.name: job.work for job in jobs}
        self.speed, self.decisions, self.ends = speed, decisions, dict[str, float]()
        self.decided: list[float] = []
        self.fraction, self.owed, self.had = Fractions(), Fractions(), Fractions()
        self.known: list[str] = []
        self.total = [0.0] * len(KINDS)

    def run(self) -> None:
        now_s = 0.0
        while self.left:
            self._decide(now_s)
            ends = {}
            for name, kind in self._who_runs():
                rate = self.speed[name][kind]
                steps = min(np.floor(rate * ROUND_S), self.left[name])
                ends[name] = now_s + steps / rate
                self.had[name, kind] = self.had.get((name, kind), 0.0) + steps / rate
                self.total[kind] += steps / rate
                self.left[name] -= steps
                if not self.left[name]:
                    del self.left[name]
                    self.ends[name] = ends[name]
            now_s = max(ends.values())

    def _decide(self, now_s: float) -> None:
        """Once somebody has left, if the last decision is old enough, or was at time 0, which counts as none."""
        last_s = self.decided[-1] if self.decided else None
        if last_s is not None and (self.known == list(self.left) or (now_s - last_s < HOLD_S and last_s > 0)):
            return
        if last_s is not None:
            self.owed = {
                key: self.owed.get(key, 0.0) + max(part, 0.0) * (now_s - last_s) - self.had.get(key, 0.0)
                for key, part in self.fraction.items()
            }
        at_s, self.fraction = self.decisions[len(self.decided)]
        assert at_s == pytest.approx(now_s)
        self.decided.append(now_s)
        self.known, self.had, self.total = list(self.left), {}, [0.0] * len(KINDS)

    def _who_runs(self) -> list[tuple[str, int]]:
        """Type after type, the jobs of the highest priority that fit."""
        runs: dict[str, int] = {}
        order = {name: i for i, name in enumerate(self.known)}
        for kind in range(len(KINDS)):
            total_s = self.total[kind] + CREDIT_S * len(self.known)

            def key(name: str, kind: int = kind, total_s: float = total_s) -> tuple[float, ...]:
                part = self.fraction[name, kind]
                priority = max(part, 0.0) / ((self.had.get((name, kind), 0.0) + CREDIT_S) / total_s)
                return -priority, -self.owed.get((name, kind), 0.0), -part, order[name]

            free = ROOM[kind]
            for name in sorted((n for n in self.left if (n, kind) in self.fraction), key=key):
                if name not in runs and self.gang[name] <= free:
                    runs[name] = kind
                    free -= self.gang[name]
        return list(runs.items())


def drawn(seed: int) -> tuple[list[Job], dict[str, list[float]]]:
    """Jobs of two virtual clusters, faster on better devices, each to another degree."""
    rng = np.random.default_rng(seed)
    jobs, speed = [], {}
    for i in range(9):
        name, gang = f"{i}", int(rng.choice([1, 1, 2]))
        speed[name] = [float(rate) for rate in np.sort(rng.uniform(0.2, 3.0, len(KINDS)))[::-1]]
        text = " ".join(f"{kind}:{gang}={rate!r}" for kind, rate in zip(KINDS, speed[name], strict=True))
        work, owner = float(rng.integers(500, 12000)), str(rng.choice(["one", "two"]))
        jobs.append(Job(name, 0.0, gang, work, Speeds.parse(text), virtual_cluster=owner))
    return jobs, speed


POLICIES: dict[str, Callable[[], Gavel]] = {
    "cost": CostProgram,
    "throughput": ThroughputProgram,
    "finish time": FinishTimeProgram,
    "water filling": WaterFillingProgram,
    "hierarchical": HierarchicalProgram,
}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", POLICIES)
def test_rounds_are_the_programs(name: str, seed: int) -> None:
    (jobs, speed), policy = drawn(seed), POLICIES[name]()
    cluster = Cluster.of_pools([(kind, 1, count) for kind, count in zip(KINDS, ROOM, strict=True)])
    heard = Heard(policy)
    run = simulate_fleet(jobs, cluster, heard, place="anywhere", rounds=policy.rounds(None))
    plain = Plain(jobs, speed, heard.decisions)
    plain.run()
    assert len(plain.decided) == len(heard.decisions) > 2
    assert finished(run) == pytest.approx(plain.ends)
