"""Queues end their jobs when a simulator of another hand does, on drawn traces."""

from __future__ import annotations

import numpy as np
import pytest
from plain_simulator import INF, Key, Ran, run

from trainyard.fleet.scheduler import scheduler_of
from trainyard.fleet.workload.job import declared_job
from trainyard.hardware.cluster import Cluster

KEYS: dict[str, tuple[Key, dict[str, object]]] = {
    "fifo": (lambda j: (j.arrival_s, j.number), {"preempts": False, "blocks": True}),
    "fifo(backfill=True)": (lambda j: (j.arrival_s, j.number), {"preempts": False, "blocks": False}),
    'fifo(backfill="easy")': (
        lambda j: (j.arrival_s, j.number),
        {"preempts": False, "blocks": False, "easy": True},
    ),
    "sjf": (lambda j: (j.length_s, j.number), {"preempts": False, "blocks": False}),
    "srtf": (lambda j: (j.left_s, j.number), {"preempts": True, "blocks": False}),
    "tiresias": (
        lambda j: (float(j.service >= 3250.0), j.start_s, j.number),
        {"preempts": True, "blocks": False, "limit": 3250.0},
    ),
}


@pytest.mark.parametrize("place", ["packed", "consolidated"])
@pytest.mark.parametrize("policy", KEYS)
def test_all_jobs_end_at_the_same_second(policy: str, place: str) -> None:
    rng = np.random.default_rng(7)
    num_jobs, nodes, width = 2000, 4, 4
    arrivals_s = np.cumsum(rng.integers(0, 1200, num_jobs)).astype(float).tolist()
    # Powers of two, so that no time is rounded.
    sizes = rng.choice([1, 1, 1, 2, 4, 8], num_jobs).tolist()
    lengths_s = np.ceil(rng.lognormal(7.0, 1.2, num_jobs)).tolist()
    limits_s = [
        length_s * each
        for length_s, each in zip(lengths_s, rng.integers(1, 6, num_jobs).tolist(), strict=True)
    ]
    drawn = list(zip(arrivals_s, sizes, lengths_s, limits_s, strict=True))
    plain = [Ran(number, *job) for number, job in enumerate(drawn)]
    key, how = KEYS[policy]
    run(plain, nodes, width, key, by_node=place == "consolidated", **how)  # type: ignore[arg-type]
    done = scheduler_of(policy, place).simulate(
        [declared_job(str(number), *job[:3], limit_s=job[3]) for number, job in enumerate(drawn)],
        Cluster.uniform(nodes, width),
    )
    ended = dict(zip(done.names, zip(done.first_start_s, done.finish_s, strict=True), strict=True))
    assert {job.number for job in plain if job.end_s < INF} == {int(name) for name in ended}
    for job in plain:
        assert ended[str(job.number)] == pytest.approx((job.start_s, job.end_s), abs=0.5)
