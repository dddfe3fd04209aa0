"""Queues end their jobs when a simulator of another hand does, on drawn traces."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plain_simulator import INF, Key, Ran, run

from trainyard.fleet.scheduler import scheduler_of
from trainyard.fleet.workload.job import declared_job
from trainyard.hardware.cluster import Cluster

EASY = 'fifo(backfill="easy")'
KEYS: dict[str, tuple[Key, dict[str, object]]] = {
    "fifo": (lambda j: (j.arrival_s, j.number), {"preempts": False, "blocks": True}),
    "fifo(backfill=True)": (lambda j: (j.arrival_s, j.number), {"preempts": False, "blocks": False}),
    EASY: (
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
    num_jobs, nodes, width = 1200, 4, 4
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
        assert ended[str(job.number)] == pytest.approx((job.start_s, job.end_s), abs=1e-6)


# Arrival after the one before, devices of the cluster, seconds, and how many times as much a user allowed it.
_JOBS = st.lists(
    st.tuples(st.integers(0, 3), st.floats(0, 0.99), st.integers(1, 9), st.integers(1, 4)),
    min_size=2,
    max_size=25,
)


@given(
    drawn=_JOBS,
    shape=st.sampled_from([(1, 4), (2, 3), (3, 2), (4, 1)]),
    policy=st.sampled_from([name for name in KEYS if name != "tiresias"] + 3 * [EASY]),
    by_node=st.booleans(),
)
@settings(max_examples=250, derandomize=True)
def test_few_jobs_that_crowd_small_clusters_start_and_end_at_the_same_second(
    drawn: list[tuple[int, float, int, int]], shape: tuple[int, int], policy: str, by_node: bool
) -> None:
    """Here most of them wait, some with a reservation, and what is free changes with each."""
    arrivals_s = np.cumsum([gap_s for gap_s, *_ in drawn]).tolist()
    jobs = [
        (float(arrival_s), 1 + int(part * shape[0] * shape[1]), float(length_s), float(length_s * times))
        for arrival_s, (_, part, length_s, times) in zip(arrivals_s, drawn, strict=True)
    ]
    plain = [Ran(number, *job) for number, job in enumerate(jobs)]
    key, how = KEYS[policy]
    run(plain, *shape, key, by_node=by_node, **how)  # type: ignore[arg-type]
    done = scheduler_of(policy, "consolidated" if by_node else "packed").simulate(
        [declared_job(str(number), *job[:3], limit_s=job[3]) for number, job in enumerate(jobs)],
        Cluster.uniform(*shape),
    )
    times_s = dict(zip(done.names, zip(done.first_start_s, done.finish_s, strict=True), strict=True))
    assert times_s == {str(job.number): (job.start_s, job.end_s) for job in plain}
