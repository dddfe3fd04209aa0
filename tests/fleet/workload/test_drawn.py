"""Workloads drawn at a load, from a trace, and with deadlines; and the command that compares policies on them."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from shared_data import DATA, needs_data

from trainyard.cli import main as cli
from trainyard.fleet.errors import FleetError
from trainyard.fleet.workload.drawn import PUBLISHED_SLACK, drawn_jobs, resampled, with_deadlines
from trainyard.fleet.workload.generate import gavel
from trainyard.fleet.workload.job import declared_job
from trainyard.fleet.workload.read import read_workload
from trainyard.hardware.cluster import Cluster
from trainyard.hardware.parse import parse_cluster

CLUSTER = Cluster.uniform(4, 8)
TRACE = Path(__file__).parents[3] / "examples" / "fleet" / "jobs.csv"
TRACES = DATA / "cluster"


@pytest.fixture
def throughputs(tmp_path: Path) -> Path:
    """A V100 does two steps in a second, whatever it is; a K80 one."""
    kinds = [(name, n) for name, many in gavel.TYPES for n in ((1, 2, 4, 8) if many else (1,))]
    path = tmp_path / "throughputs.json"
    tables = {
        kind: {f"('{name}', {n})": {"null": rate} for name, n in kinds}
        for kind, rate in (("v100", 2.0), ("k80", 1.0))
    }
    path.write_text(json.dumps(tables))
    return path


def test_the_load_of_tiresias_is_what_was_asked_for() -> None:
    jobs = drawn_jobs("tiresias", 20_000, 0.6, CLUSTER, seed=1)
    device_s = sum(job.num_devices * job.work for job in jobs)
    assert device_s / (jobs[-1].arrival_s * CLUSTER.num_devices) == pytest.approx(0.6, rel=0.05)
    assert max(job.num_devices for job in drawn_jobs("tiresias", 100, 0.6, Cluster.uniform(1, 4), 1)) == 4


def test_the_load_of_gavel_counts_the_fastest_devices(throughputs: Path) -> None:
    cluster = parse_cluster("2x4xk80+2x2xv100")
    jobs = drawn_jobs("gavel", 20_000, 0.6, cluster, 1, throughputs)
    assert Counter(job.num_devices for job in jobs).keys() == {1, 2, 4, 8}, "all eight K80s are a gang"
    # A gang of eight has only K80s; the others are twice as fast on the four V100s.
    device_s = sum(job.num_devices * job.work / (1.0 if job.num_devices == 8 else 2.0) for job in jobs)
    assert device_s / (jobs[-1].arrival_s * cluster.num_devices) == pytest.approx(0.6, rel=0.05)
    small = drawn_jobs("gavel", 2_000, 0.6, parse_cluster("1x2xv100"), 1, throughputs)
    shares = Counter(job.num_devices for job in small)
    assert shares.keys() == {1, 2}
    assert shares[1] / 2_000 == pytest.approx(7 / 8, abs=0.03)


def test_what_a_generator_needs(throughputs: Path) -> None:
    with pytest.raises(FleetError, match="'gavel' needs `profiles`: throughputs of Gavel"):
        drawn_jobs("gavel", 10, 0.5, CLUSTER, 0)
    with pytest.raises(FleetError, match="'helios' needs no profiles"):
        drawn_jobs("helios", 10, 0.5, CLUSTER, 0, throughputs)
    with pytest.raises(FleetError, match="no job of gavel runs on cluster '4x8xdevice'"):
        drawn_jobs("gavel", 10, 0.5, CLUSTER, 0, throughputs)


def test_jobs_are_drawn_from_a_trace_with_its_arrivals() -> None:
    trace = [
        declared_job(f"j{i}", 10.0 * i, 1 + i % 3, 5.0 + i, deadline_s=20.0 * i + 7.0) for i in range(50)
    ]
    drawn = list(resampled(trace, 1))
    assert [job.arrival_s for job in drawn] == [job.arrival_s for job in trace]
    assert len({job.name for job in drawn}) == len(trace)
    by_name = {job.name: job for job in trace}
    came = Counter()
    for job in drawn:
        original = by_name[job.name.partition("~")[2]]
        came[original.name] += 1
        assert original.deadline_s is not None
        assert job == replace(
            original,
            name=job.name,
            arrival_s=job.arrival_s,
            deadline_s=original.deadline_s - original.arrival_s + job.arrival_s,
        )
    assert max(came.values()) > 1, "with replacement"
    assert list(resampled(trace, 1)) == drawn != list(resampled(trace, 2))


def test_deadlines_are_drawn_in_lengths_of_the_job() -> None:
    jobs = [declared_job(str(i), 3.0 * i, 1, 100.0 + i) for i in range(4_000)]
    kept = replace(jobs[7], deadline_s=1.0)
    jobs[7] = kept
    given = list(with_deadlines(jobs, CLUSTER, 5))
    assert given[7] == kept
    assert [replace(job, deadline_s=None) for job in given if job != kept] == [j for j in jobs if j != kept]
    factors = np.array(
        [(j.deadline_s - j.arrival_s) / j.work for j in given if j is not kept and j.deadline_s]
    )
    assert (factors.min(), factors.max()) == pytest.approx(PUBLISHED_SLACK, abs=0.01)
    assert factors.mean() == pytest.approx(1.0, abs=0.02)
    assert factors.var() == pytest.approx(1 / 12, rel=0.05)
    assert list(with_deadlines(jobs, CLUSTER, 5)) == given != list(with_deadlines(jobs, CLUSTER, 6))
    with pytest.raises(FleetError, match=r"two numbers of lengths, as 0\.5,1\.5; got 2,1"):
        list(with_deadlines(jobs, CLUSTER, 5, (2.0, 1.0)))


@needs_data(TRACES)
def test_deadlines_are_like_those_of_elasticflow() -> None:
    """In the trace with deadlines that its authors published."""
    rows = (TRACES / "elasticflow-traces" / "elasticflow" / "cluster05.csv").read_text().splitlines()
    columns = rows[0].split(",")
    jobs = [dict(zip(columns, row.split(","), strict=True)) for row in rows[1:]]
    lengths = {
        name: np.array([float(j[name]) for j in jobs]) for name in ("submission_time", "deadline", "duration")
    }
    factors = (lengths["deadline"] - lengths["submission_time"]) / lengths["duration"]
    assert (factors.min(), factors.max()) == pytest.approx(PUBLISHED_SLACK, abs=0.01)
    assert factors.var() == pytest.approx(1 / 12, rel=0.05)


def compared(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    """What the command says of `srtf` on four nodes of four."""
    command = ("fleet", "compare", "--cluster", "4x4", "--policy", "srtf", "--seeds", "3", "--json")
    assert cli.main((*command, *arguments)) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_the_command_compares_on_a_trace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.html"
    plain = compared(capsys, "--trace", str(TRACE), "--html", str(page))
    assert (plain["workload"], plain["num_jobs"], plain["load"]) == (str(TRACE), 60, None)
    (standing,) = plain["policies"]
    jobs = list(read_workload(TRACE))
    clusters = {job.virtual_cluster for job in jobs}
    assert set(standing["by"]["virtual_cluster"]) == clusters
    assert "Whose jobs wait, beside srtf" in page.read_text()
    assert all(name in page.read_text() for name in clusters)
    assert standing["num_missed"] == {"mean": 0.0, "half_width": 0.0}
    (late,) = compared(capsys, "--trace", str(TRACE), "--deadlines", "0.5,1.5")["policies"]
    assert late["completion_s"] == standing["completion_s"], "the jobs are the same"
    assert 20 < late["num_missed"]["mean"] < 60, "at least those with less than their length"
    by_cluster = sum(figures["num_missed"]["mean"] for figures in late["by"]["virtual_cluster"].values())
    assert by_cluster == pytest.approx(late["num_missed"]["mean"])


@pytest.mark.parametrize(
    "condition",
    [
        ("--restart", "5min"),
        ("--start", "5min"),
        ("--stragglers", "0.5"),
        ("--failure-every", "20000s"),
        ("--node-failure-every", "20000s"),
        ("--crowding", "1"),
        ("--round", "1h"),
    ],
    ids=lambda condition: condition[0],
)
def test_the_command_simulates_under_conditions(
    condition: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    (plain,) = compared(capsys, "--trace", str(TRACE))["policies"]
    (under,) = compared(capsys, "--trace", str(TRACE), *condition)["policies"]
    assert under["completion_s"]["mean"] > plain["completion_s"]["mean"]


def test_the_command_draws_from_all_generators(throughputs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = compared(capsys, "--workload", "tiresias", "--jobs", "40", "--load", "0.7")
    assert (found["workload"], found["num_jobs"], found["load"]) == ("tiresias", 40, 0.7)
    drawn = ("--workload", "gavel", "--jobs", "40", "--profiles", str(throughputs))
    command = ("fleet", "compare", "--cluster", "2x4xv100+2x2xk80", "--policy", "fifo,las", *drawn)
    assert cli.main((*command, "--seeds", "2", "--deadlines", "1,2")) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "40 jobs of gavel at load 0.8, deadlines after 1 to 2 lengths on 2x4xv100+2x2xk80, 2 seeds" in said
    assert "missed" in said
    assert "unfair" in said


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--trace", str(TRACE), "--workload", "philly"), "leave --workload, --jobs and --load out"),
        (("--trace", str(TRACE), "--jobs", "5"), "leave --workload, --jobs and --load out"),
        (("--limit", "5"), "--format, --limit and --timezone are about a trace"),
        (("--deadlines", "1"), "is not two numbers separated by a comma"),
        (("--deadlines", "2,1"), "deadlines are between two numbers of lengths"),
        (("--workload", "gavel"), "'gavel' needs `profiles`"),
        (("--seeds", "1"), "--seeds 1: allowed is 2 to 10,000"),
        (("--stragglers", "2"), "--stragglers 2.0: allowed is 0 to 1"),
        (("--trace", "nowhere.csv"), "nowhere.csv"),
    ],
)
def test_errors_of_the_command(
    arguments: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(("fleet", "compare", "--cluster", "4x4", *arguments)) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert said in told.err
