"""Generated workloads have the distributions that were published."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice

import numpy as np
import pytest
from shared_data import DATA, needs_data

from trainyard.fleet.workload.generate import (
    gavel,
    gavel_jobs,
    helios,
    helios_jobs,
    philly,
    philly_jobs,
    tiresias_jobs,
)
from trainyard.fleet.workload.job import Job
from trainyard.fleet.workload.read import read_workload
from trainyard.fleet.workload.readers.gavel import Throughputs, read_throughputs

TRACES = DATA / "cluster"

FLAT = Throughputs(
    {"v100": {(name, n): 2.0 for name, many in gavel.TYPES for n in ((1, 2, 4, 8) if many else (1,))}},
    {},
)
GENERATORS: dict[str, Callable[[int, int], Iterator[Job]]] = {
    "philly": philly_jobs,
    "helios": helios_jobs,
    "tiresias": tiresias_jobs,
    "gavel": lambda n, seed: gavel_jobs(n, FLAT, seed, mean_gap_s=100.0, multi_device=True),
}


@pytest.mark.parametrize("name", GENERATORS)
def test_same_seed_same_jobs(name: str) -> None:
    make = GENERATORS[name]
    jobs = list(make(200, 3))
    assert jobs == list(make(200, 3))
    assert jobs != list(make(200, 4))
    assert len({job.name for job in jobs}) == 200
    assert all(job.work > 0 and job.num_devices > 0 for job in jobs)
    assert all(jobs[i].arrival_s <= jobs[i + 1].arrival_s for i in range(199))


def test_philly_has_sizes_hours_and_rate() -> None:
    jobs = list(philly_jobs(20000, seed=1))
    assert jobs[-1].arrival_s / len(jobs) == pytest.approx(138 * 86400 / 117325, rel=0.03)
    single = sum(job.num_devices == 1 for job in jobs) / len(jobs)
    assert single == pytest.approx(76627 / 82247, abs=0.005)
    hours = Counter(int(job.arrival_s // 3600) % 24 for job in jobs)
    assert hours[7] > 2.5 * hours[14]
    assert max(job.num_devices for job in philly_jobs(20000, most_devices=4)) == 4


@needs_data(TRACES)
def test_philly_is_like_the_trace() -> None:
    trace = list(read_workload(TRACES / "pollux/traces/philly.csv"))
    drawn = list(philly_jobs(20000, seed=2))
    counts = Counter(job.num_devices for job in trace)
    assert counts == philly.SIZES
    assert Counter(job.virtual_cluster for job in trace) == philly.CLUSTERS
    for fewest, most, tolerance in ((1, 1, 0.05), (2, 4, 0.4), (5, 8, 0.4)):
        ours, theirs = ([j.work for j in jobs if fewest <= j.num_devices <= most] for jobs in (drawn, trace))
        for percent in (25, 50, 75, 90):
            mine, public = np.percentile(ours, percent), np.percentile(theirs, percent)
            assert abs(np.log(mine / public)) < np.log1p(tolerance), (fewest, percent)


def test_helios_has_the_published_mean_and_median() -> None:
    jobs = list(helios_jobs(40000, seed=1))
    lengths = np.array([job.work for job in jobs])
    assert np.median(lengths) == pytest.approx(206, rel=0.05)
    assert lengths.mean() == pytest.approx(6651.7, rel=0.15)
    assert lengths.max() <= 50 * 86400
    sizes = np.array([job.num_devices for job in jobs])
    assert np.median(sizes) == 1
    assert sizes.mean() == pytest.approx(3.716, rel=0.1)
    # 1,580,464 jobs in the 183 days from April to September
    assert jobs[-1].arrival_s / len(jobs) == pytest.approx(183 * 86400 / 1580464, rel=0.03)
    powers = np.arange(12)
    shares = helios.RATIO**powers
    assert (2.0**powers * shares).sum() / shares.sum() == pytest.approx(3.716, abs=0.001)
    assert max(job.num_devices for job in helios_jobs(5000, most_devices=8)) == 8


@needs_data(TRACES)
@pytest.mark.parametrize(("gap_s", "first", "count"), [(1200, 101, 2069), (3600, 51, 238)])
def test_gavel_is_the_authors_generator(gap_s: int, first: int, count: int) -> None:
    """Types, steps, and gaps; the authors' file begins with its measurement, and shortens what ran then."""
    profiles = TRACES / "gavel/simulation_throughputs.json"
    trace = TRACES / f"gavel/traces/generated/seed0_lam{gap_s}_1gpu.trace"
    theirs = [job for job in read_workload(trace, profiles=profiles) if job.arrival_s > 0]
    ours = list(islice(gavel_jobs(first + count, read_throughputs(profiles), mean_gap_s=gap_s), first, None))
    assert [(job.model, job.batch_size, job.work) for job in ours] == [
        (j.model, j.batch_size, j.work) for j in theirs
    ]
    shift_s = ours[0].arrival_s - theirs[0].arrival_s
    assert [job.arrival_s - shift_s for job in ours] == pytest.approx(
        [job.arrival_s for job in theirs], abs=2e-6
    )
    assert len(theirs) == count


def test_gavel_gangs_and_durations() -> None:
    jobs = list(gavel_jobs(20000, FLAT, 5, mean_gap_s=60.0, multi_device=True))
    shares = {size: count / len(jobs) for size, count in Counter(job.num_devices for job in jobs).items()}
    assert shares == pytest.approx({1: 0.7, 2: 0.1, 4: 0.15, 8: 0.05}, abs=0.01)
    minutes = np.array([job.work for job in jobs]) / 2.0 / 60
    assert minutes.min() >= 10**1.5 - 0.01
    assert minutes.max() <= 10**4
    assert (minutes >= 1000).mean() == pytest.approx(0.2, abs=0.01)
    assert jobs[0].arrival_s == 0
    assert jobs[-1].arrival_s / len(jobs) == pytest.approx(60, rel=0.03)
    assert {job.num_devices for job in gavel_jobs(300, FLAT, mean_gap_s=1.0)} == {1}
    distributed = {name for name, many in gavel.TYPES if many}
    assert {job.name.partition(":")[2] for job in jobs if job.num_devices > 1} == distributed


def test_tiresias_has_the_shape_of_the_sixty() -> None:
    jobs = list(tiresias_jobs(seed=7))
    assert Counter(job.num_devices for job in jobs) == {1: 30, 2: 10, 4: 10, 8: 10}
    assert set(Counter(job.model for job in jobs).values()) == {6}
    lengths = sorted(job.work for job in islice(tiresias_jobs(6000), 6000))
    assert (lengths[0], lengths[-1] <= 1800) == (121, True)
    assert lengths[3000] == 125


@needs_data(TRACES)
def test_tiresias_is_like_the_sixty() -> None:
    theirs = list(read_workload(TRACES / "tiresias/60_job.csv"))
    ours = list(tiresias_jobs(6000))
    assert {job.model for job in ours} == {job.model for job in theirs}
    for percent in (25, 50, 75, 90):
        mine, public = (np.percentile([job.work for job in jobs], percent) for jobs in (ours, theirs))
        assert mine == pytest.approx(public, rel=0.1)
    assert ours[-1].arrival_s / 5999 == pytest.approx(theirs[-1].arrival_s / 59, rel=0.03)
