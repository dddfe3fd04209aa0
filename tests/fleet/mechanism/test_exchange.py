"""The exchange of devices in one call, next to the same step by step."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from trainyard.fleet.catalog import parse_policy
from trainyard.fleet.mechanism.costs import Costs
from trainyard.fleet.policy import Policy, Targets
from trainyard.fleet.simulate import simulate_fleet
from trainyard.fleet.site import Site
from trainyard.fleet.snapshot import Need, Snapshot
from trainyard.fleet.workload.generate import philly_jobs

SITE = Site.of_pools([("V100", 3, 8), ("K80", 3, 4)])


@dataclass(frozen=True)
class Restless:
    """Moves jobs between types, resizes and spreads them by chance; the first to arrive gets all that it asks for."""

    needs: frozenset[Need] = frozenset()
    preempts: bool = True

    def start(self, site: Site) -> int:
        return 0

    def decide(self, snapshot: Snapshot, state: int) -> tuple[Targets, int]:
        rng, num_jobs = np.random.default_rng(state), snapshot.num_jobs
        counts = np.minimum(snapshot.num_devices, rng.integers(0, 9, num_jobs))
        counts[0] = snapshot.num_devices[0]
        targets = Targets(
            np.append(0, 1 + rng.permutation(num_jobs - 1)),
            num_devices=counts,
            device_type=rng.integers(-1, 2, num_jobs) * (np.arange(num_jobs) > 0),
            consolidate=rng.random(num_jobs) < 0.5,
            backfill=bool(state % 3),
            ask_again_s=snapshot.now_s + 600,
        )
        return targets, state + 1


@pytest.mark.parametrize(
    "policy", [parse_policy(name) for name in ("srtf", "las", "tiresias")] + [Restless()]
)
def test_an_exchange_in_one_call_is_the_same_as_step_by_step(policy: Policy) -> None:
    """Where charts are wanted, every step is taken by itself."""
    jobs = list(philly_jobs(150, mean_gap_s=60.0, most_devices=8))
    at_once, by_steps = (
        simulate_fleet(jobs, SITE, policy, costs=Costs(30.0, 10.0), keep_spans=keep) for keep in (False, True)
    )
    assert at_once.names == by_steps.names
    for column in ("first_start_s", "finish_s", "device_s", "num_preempted", "num_starts"):
        np.testing.assert_array_equal(getattr(at_once, column), getattr(by_steps, column))
    np.testing.assert_array_equal(at_once.used, by_steps.used)
    assert at_once.num_preemptions > 0
