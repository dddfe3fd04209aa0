"""Vidur's schedulers, request by request beside what the program put out."""

from __future__ import annotations

import numpy as np
import pytest
from served import STEP, table, vidur_requests
from shared_data import DATA, needs_data

from trainyard.serve.cache.block_cache import BlockCache
from trainyard.serve.instance import Instance
from trainyard.serve.policy import BatchPolicy
from trainyard.serve.replicas.vidur import VidurOrca, VidurSarathi, VidurVLLM, shortest_queue
from trainyard.serve.request_state import RequestState
from trainyard.serve.requests.request import Request
from trainyard.serve.simulate_requests import simulate_requests

_POLICIES: dict[str, BatchPolicy] = {"V1": VidurVLLM(), "V2": VidurSarathi(512), "V7": VidurVLLM()}


def _instances(policy: BatchPolicy, num: int) -> list[Instance]:
    return [Instance(policy, BlockCache(2000, 16), prefix_caching=False) for _ in range(num)]


@needs_data(DATA)
@pytest.mark.parametrize("case", sorted(_POLICIES))
def test_every_request_is_as_in_the_program(case):
    (said,) = (row for row in table(DATA / "reference/serve/vidur_summary.csv") if row["case"] == case)
    instances = _instances(_POLICIES[case], int(said["replicas"]))
    results = simulate_requests(vidur_requests(float(said["time_scale"])), instances, STEP)
    served = {int(each.request.name): each for each in results.served}
    for number, row in enumerate(table(DATA / f"reference/serve/vidur_{case}.csv")):
        ours = served[number]
        assert ours.num_preemptions == int(row["num_restarts"])
        assert [ours.scheduled_s, ours.first_token_s, ours.finished_s] == pytest.approx(
            [float(row[name]) for name in ("scheduled_at", "prefill_completed_at", "completed_at")], rel=1e-6
        )
    assert results.num_steps == int(said["batches"])
    assert results.num_preemptions == int(said["restarts"])
    e2e_s = results.of_served(lambda each: each.e2e_s)
    assert e2e_s.mean() == pytest.approx(float(said["e2e_mean_s"]), rel=1e-6)
    assert np.percentile(e2e_s, 99) == pytest.approx(float(said["e2e_p99_s"]), rel=1e-6)


@needs_data(DATA)
def test_reservations_never_preempt():
    results = simulate_requests(vidur_requests(0.25), _instances(VidurOrca(), 1), STEP)
    assert len(results.served) == 512
    assert results.num_preemptions == 0


def test_the_shortest_queue_is_of_those_that_wait():
    instances = _instances(VidurVLLM(), 2)
    for number, where in enumerate([1, 1, 1, 0]):
        instances[where].arrive(RequestState(number, Request(str(number), 0.0, 16, 16), 0.0))
        if number == 2:
            instances[1].decide(0.0)
    assert shortest_queue(RequestState(4, Request("4", 0.0, 16, 16), 0.0), instances) == 1
