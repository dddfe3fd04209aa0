"""Jobs that were interrupted: when they had devices is what was recorded, and the time between is waiting."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trainyard.cli.main import main
from trainyard.fleet.catalog import CATALOG
from trainyard.fleet.errors import FleetError, UnfitJobError
from trainyard.fleet.recorded import recorded_run
from trainyard.fleet.records import FleetRun
from trainyard.fleet.scheduler import scheduler_of
from trainyard.fleet.simulate_fleet import prepared_run
from trainyard.fleet.traits import traits_of
from trainyard.fleet.workload.attempts import Attempt, joined
from trainyard.fleet.workload.job import Job, declared_job
from trainyard.fleet.workload.read import read_workload
from trainyard.hardware.cluster import Cluster
from trainyard.hardware.parse import parse_cluster

CASES = Path(__file__).parent / "cases"


def recorded(jobs: list[Job], cluster: str) -> FleetRun:
    run = recorded_run(jobs, parse_cluster(cluster))
    assert run is not None
    return run


def series(run: FleetRun) -> list[tuple[float, float, float]]:
    """Moments with devices in use and jobs that wait."""
    return list(zip(*(column.tolist() for column in run.series), strict=True))


def test_a_job_of_slurm_that_waited_between_two_attempts() -> None:
    run = recorded(list(read_workload(CASES / "sacct_attempts_apart.txt")), "1x1xV100")
    hour_s = 3600.0
    assert run.completion_s.tolist() == [12 * hour_s]
    assert run.waiting_s.tolist() == [10 * hour_s]
    assert (run.first_wait_s.tolist(), run.work_s.tolist()) == ([0.0], [2 * hour_s])
    assert run.device_s.tolist() == [2 * hour_s]
    assert (run.num_starts.tolist(), run.num_preempted.tolist()) == ([2], [1])
    assert series(run) == [(0, 1, 0), (hour_s, 0, 1), (11 * hour_s, 1, 0), (12 * hour_s, 0, 0)]


def test_nobody_counts_twice_where_devices_changed_hands() -> None:
    """A long job makes room for a short one and goes on: one device is in use all the time."""
    long = declared_job("long", 0, 1, 20.0, attempts=(Attempt(0.0, 1, 10.0), Attempt(15.0, 1, 25.0)))
    run = recorded([long, declared_job("short", 10, 1, 5.0, attempts=(Attempt(10.0, 1),))], "1x1")
    assert run.names == ("short", "long")
    assert run.series.num_devices_in_use.tolist() == [1, 1, 1, 0]
    assert run.waiting_s.tolist() == [0.0, 5.0]
    assert run.busy == 1.0


def test_attempts_of_philly_with_their_own_devices(tmp_path: Path) -> None:
    attempts = [("00:00:10", "00:01:00", 4), ("00:02:00", None, 2), ("00:10:00", "00:20:00", 2)]
    job = {
        "status": "Pass", "vc": "a", "jobid": "j", "submitted_time": "2017-10-05 00:00:00", "user": "u",
        "attempts": [
            {
                "start_time": f"2017-10-05 {start}", "end_time": end and f"2017-10-05 {end}",
                "detail": [{"ip": "m", "gpus": ["g"] * size}],
            }
            for start, end, size in attempts
        ],
    }  # fmt: skip
    path = tmp_path / "cluster_job_log"
    path.write_text(json.dumps([job]))
    (read,) = read_workload(path)
    assert read.attempts == (Attempt(10.0, 4, 60.0), Attempt(600.0, 2, 1200.0))
    assert (read.num_devices, read.work) == (2, 650.0)
    run = recorded([read], "1x4")
    assert (run.completion_s.tolist(), run.waiting_s.tolist()) == ([1200.0], [550.0])
    assert run.device_s.tolist() == [50 * 4 + 600 * 2]


def test_components_of_slurm_have_their_devices_together(tmp_path: Path) -> None:
    """Of a heterogeneous job every attempt is one of all components; the longest says when it is over."""
    path = tmp_path / "jobs.sacct"
    path.write_text(
        "JobID|Submit|Start|State|ElapsedRaw|AllocTRES\n"
        "7+0|1000000000|1000000000|NODE_FAIL|100|gres/gpu=4\n"
        "7+1|1000000000|1000000000|NODE_FAIL|90|gres/gpu=2\n"
        "7+0|1000000100|1000000500|COMPLETED|50|gres/gpu=4\n"
        "7+1|1000000100|1000000500|COMPLETED|60|gres/gpu=2\n"
        "8|1000000000|Unknown|NODE_FAIL|10|gres/gpu=1\n"
        "8|1000000020|1000000020|COMPLETED|10|gres/gpu=1\n"
    )
    first, second = read_workload(path)
    assert first.attempts == (Attempt(0.0, 6, 100.0), Attempt(500.0, 6, 560.0))
    assert (second.work, second.attempts) == (20.0, ())


def test_parts_in_the_standard_workload_format(tmp_path: Path) -> None:
    """The wait of a further part counts from the end of the part before it, and its submission is -1."""
    job = next(job for job in read_workload(CASES / "archive.swf") if job.name == "6")
    assert job.attempts == (Attempt(170.0, 8, 570.0), Attempt(870.0, 8, 1470.0))
    line = "{} {} {} {} 8 -1 -1 8 4000 -1 {} 4 1 1 1 1 -1 -1\n"
    rows = [(5, 10, 0, 60, 1), (6, 150, 20, 400, 2), (6, -1, 300, 600, 3), (7, 160, 0, 60, 1)]
    path = tmp_path / "parts.swf"
    path.write_text("".join(line.format(*row) for row in rows))
    jobs = {each.name: each for each in read_workload(path)}
    assert (jobs["6"].arrival_s, jobs["6"].work, jobs["6"].attempts) == (150, 1000, job.attempts)
    rows[2] = (6, -1, -1, 600, 3)
    path.write_text("".join(line.format(*row) for row in rows))
    assert {each.name: len(each.attempts) for each in read_workload(path)} == {"5": 1, "6": 0, "7": 1}


def test_what_overlaps_is_one_attempt() -> None:
    assert joined([[(0.0, 10.0, 2), (5.0, 20.0, 1), (20.0, 30.0, 2)]]) == (
        Attempt(0.0, 1, 20.0),
        Attempt(20.0, 2, 30.0),
    )
    assert joined([[(0.0, 10.0, 2)], [(3.0, 8.0, 1)], []]) == (Attempt(0.0, 3, 10.0),)
    assert joined([[]]) == ()


@pytest.mark.parametrize(
    ("header", "fields", "said"),
    [
        ("attempts", "5:9 7:8", "START:END for each attempt"),
        ("attempts", "9:5", "START:END for each attempt"),
        ("attempts", "5", "START:END for each attempt"),
        ("attempts", "5:6*x", "START:END for each attempt"),
        ("started_s,attempts", "5,5:9", "nothing where attempts say"),
    ],
)
def test_attempts_that_cannot_be(tmp_path: Path, header: str, fields: str, said: str) -> None:
    path = tmp_path / "jobs.csv"
    path.write_text(f"name,arrival_s,num_devices,length_s,{header}\na,0,1,5,{fields}\n")
    with pytest.raises(FleetError, match=said):
        list(read_workload(path, strict=True))


def test_partitions_and_starts_in_one_trace(capsys: pytest.CaptureFixture[str]) -> None:
    cluster = parse_cluster(str(CASES / "partitions_with_starts.yaml"))
    names = [entry.name for entry in CATALOG if "partition" in traits_of(entry.factory()).supports]
    assert {"fifo", "sjf", "srtf", "las", "tiresias"} <= set(names)
    trace = str(CASES / "partitions_with_starts.csv")
    to = ("--trace", trace, "--cluster", str(CASES / "partitions_with_starts.yaml"))
    assert main(("fleet", "simulate", *to, "--policy", ",".join([*names, "gavel_fifo"]), "--json")) == 0
    found = json.loads(capsys.readouterr().out)
    assert [each["policy"] for each in found["cannot_run"]] == ["gavel_fifo"]
    mean_s = {run["policy"]: run["mean_completion_s"] for run in found["runs"]}
    assert mean_s == dict.fromkeys(names, 10.0) | {"as recorded": 11.5}
    jobs = [declared_job("x", 0, 1, 5.0, virtual_cluster="c", attempts=(Attempt(0.0, 1),))]
    run = recorded_run(jobs, cluster)
    assert run is not None
    assert [each.reason for each in run.left_out] == ["its partition has no nodes in the cluster"]


def test_what_can_be_refused_is_refused_before_it_is_simulated() -> None:
    class Never:
        needs, preempts = frozenset[str](), False

        def start(self, cluster: Cluster) -> None: ...

        def decide(self, snapshot: object, state: object) -> object:
            raise AssertionError("it was simulated")

    jobs = [declared_job("a", 0, 1, 20.0), declared_job("b", 5, 200, 40.0)]
    with pytest.raises(UnfitJobError, match="'b' asks for 200 devices"):
        prepared_run(jobs, Cluster.uniform(1, 8), Never(), strict=True)  # type: ignore[arg-type]
    partitions = parse_cluster(str(CASES / "partitions_with_starts.yaml"))
    with pytest.raises(FleetError, match="has partitions"):
        scheduler_of("gavel_fifo").prepared(jobs, partitions)
