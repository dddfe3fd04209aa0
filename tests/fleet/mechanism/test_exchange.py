"""The exchange of devices in one call, next to the same step by step."""

from __future__ import annotations

import numpy as np
import pytest
from restless import CLUSTER, Restless

from trainyard.fleet.catalog import parse_policy
from trainyard.fleet.mechanism.costs import Costs
from trainyard.fleet.policy import Policy
from trainyard.fleet.simulate_fleet import simulate_fleet
from trainyard.fleet.workload.generate import philly_jobs


@pytest.mark.parametrize(
    "policy", [parse_policy(name) for name in ("srtf", "las", "tiresias")] + [Restless()]
)
def test_an_exchange_in_one_call_is_the_same_as_step_by_step(policy: Policy) -> None:
    """Where charts are wanted, every step is taken by itself."""
    jobs = list(philly_jobs(150, mean_gap_s=60.0, most_devices=8))
    at_once, by_steps = (
        simulate_fleet(jobs, CLUSTER, policy, costs=Costs(30.0, 10.0), keep_spans=keep)
        for keep in (False, True)
    )
    assert at_once.names == by_steps.names
    for column in ("first_start_s", "finish_s", "device_s", "num_preempted", "num_starts"):
        np.testing.assert_array_equal(getattr(at_once, column), getattr(by_steps, column))
    np.testing.assert_array_equal(at_once.series, by_steps.series)
    assert at_once.num_preemptions > 0
