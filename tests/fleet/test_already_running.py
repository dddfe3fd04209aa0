"""Jobs that run already when a trace begins have devices from then on, before all others."""

from __future__ import annotations

from pathlib import Path

import pytest
from runs import finished

from trainyard.fleet.catalog import CATALOG
from trainyard.fleet.errors import FleetError
from trainyard.fleet.mechanism.costs import Costs
from trainyard.fleet.scheduler import scheduler_of
from trainyard.fleet.what_if import parse_what_if
from trainyard.fleet.workload.drawn import resampled
from trainyard.fleet.workload.job import Job, declared_job
from trainyard.fleet.workload.own import read_own, write_jobs
from trainyard.hardware.cluster import Cluster
from trainyard.hardware.parse import parse_cluster

_HEAD = "name,arrival_s,num_devices,length_s,limit_s,ran_s\n"
_SEARCHES = ("pollux", "sia")  # for jobs that adapt themselves


def read(tmp_path: Path, *lines: str) -> list[Job]:
    (tmp_path / "jobs.csv").write_text(_HEAD + "\n".join(lines) + "\n")
    return list(read_own(tmp_path / "jobs.csv"))


def test_what_is_left_of_length_and_limit(tmp_path: Path) -> None:
    jobs = read(tmp_path, "a,0,1,100,150,40", "b,0,1,100,,40", "c,0,1,100,30,40", "d,0,1,100,150,")
    assert [(job.work, job.limit_s, job.ran_s) for job in jobs] == [
        (60, 110, 40), (60, None, 40), (60, 0, 40), (100, 150, 0),
    ]  # fmt: skip
    write_jobs(jobs, tmp_path / "again.csv")
    assert list(read_own(tmp_path / "again.csv")) == jobs
    assert {(job.work + job.ran_s, job.ran_s) for job in resampled(jobs, 0)} == {(100, 0)}
    ended = parse_what_if("limit=50s").jobs(jobs)
    assert [(job.limit_s, job.killed_after_s) for job in ended] == [(10, 10), (10, 10), (0, 10), (50, 50)]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("a,0,1,100,150,100", "'ran_s'.*got '100', allowed is a number below length_s, 100"),
        ("a,0,1,0,150,5", "'ran_s'.*got '5', allowed is a number below length_s, 0"),
        ("a,0,1,100,150,-1", "'ran_s'.*a number of at least 0"),
        ("a,0,1,100,150,x", "'ran_s'"),
    ],
)
def test_what_cannot_be_read(line: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "jobs.csv").write_text(_HEAD + line + "\n")
    with pytest.raises(FleetError, match=said):
        list(read_own(tmp_path / "jobs.csv"))


def test_they_come_before_jobs_that_wait_and_pay_no_start() -> None:
    """The first in the file would fill the cluster; limits count from before the trace, so that the last may start."""
    jobs = [
        declared_job("first", 0, 4, 50, limit_s=50.0),
        declared_job("ran", 0, 3, 100, limit_s=120.0, ran_s=80.0),
        declared_job("soon", 0, 1, 100, limit_s=110.0),
    ]
    for way in ("easy", "conservative"):
        done = scheduler_of(f"fifo(backfill='{way}')").simulate(
            jobs, Cluster.uniform(1, 4), costs=Costs(start_s=10.0)
        )
        assert finished(done) == {"ran": 100, "soon": 110, "first": 170}, way


@pytest.mark.parametrize(
    "entry", [entry for entry in CATALOG if entry.name not in _SEARCHES], ids=lambda e: e.name
)
def test_they_have_devices_at_once_under_every_policy(entry: object) -> None:
    name = entry.name  # type: ignore[attr-defined]
    jobs = [declared_job(f"job{i}", 0.0, 4, 300.0, deadline_s=1e6) for i in range(2)]
    jobs += [declared_job("ran", 0.0, 4, 400.0, ran_s=10.0, deadline_s=1e6)]
    done = scheduler_of(name).simulate(jobs, Cluster.uniform(1, 4))
    first_s = dict(zip(done.names, done.first_start_s.tolist(), strict=True))
    assert first_s["ran"] == 0
    if not scheduler_of(name).policy.preempts:
        assert finished(done)["ran"] == 400


def test_one_that_finds_no_place_waits_like_others() -> None:
    jobs = [declared_job("ran", 0, 4, 10, ran_s=5.0), declared_job("too", 0, 3, 10, ran_s=5.0)]
    jobs += [declared_job("typed", 0, 1, 10, ran_s=5.0, device_types=("B",))]
    done = scheduler_of("fifo").simulate(jobs, parse_cluster("1x4xA+1x2xB"))
    assert finished(done) == {"ran": 10, "typed": 10, "too": 20}
    spread = [declared_job("a", 0, 3, 10, ran_s=1.0), declared_job("b", 0, 3, 10, ran_s=1.0)]
    spread += [declared_job("c", 0, 2, 10, ran_s=1.0)]
    done = scheduler_of("fifo").simulate(spread, Cluster.uniform(2, 4))
    assert finished(done) == {"a": 10, "b": 10, "c": 10}


@pytest.mark.parametrize(("ran_s", "first"), [(30.0, "of b"), (100.0, "of a")])
def test_devices_that_they_had_before_are_usage(ran_s: float, first: str) -> None:
    jobs = [
        declared_job("a ran", 0, 1, 10, user="a", ran_s=50.0),
        declared_job("b ran", 0, 1, 10, user="b", ran_s=ran_s),
        declared_job("of a", 1, 2, 10, user="a"),
        declared_job("of b", 2, 2, 10, user="b"),
    ]
    done = scheduler_of("fair_share(half_life_s=None)").simulate(jobs, Cluster.uniform(1, 2))
    second = {"of a": "of b", "of b": "of a"}[first]
    assert finished(done) == {"a ran": 10, "b ran": 10, first: 20, second: 30}
