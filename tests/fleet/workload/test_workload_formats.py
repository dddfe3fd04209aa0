"""Formats of which the public files are not at hand, on made-up rows; recognition; folders."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path

import pytest

from trainyard.fleet.errors import FleetError
from trainyard.fleet.workload.job import Grant, Job, Spot
from trainyard.fleet.workload.read import FORMATS, read_workload, recognise
from trainyard.fleet.workload.readers import philly

FIXTURES = Path(__file__).parent / "fixtures"


def brief(job: Job) -> tuple[str, float, int, float, str, str]:
    return job.name, job.arrival_s, job.num_devices, job.work, job.user, job.virtual_cluster


def test_philly_sums_the_attempts_and_leaves_out_what_never_ran() -> None:
    jobs = list(read_workload(FIXTURES / "cluster_job_log.json"))
    assert [brief(job) for job in jobs] == [
        ("application_1_0001", 0.0, 1, 74.0, "bob", "vc-blue"),
        ("application_1_0002", 2901.0, 4, 600.0 + 3630.0, "ann", "vc-red"),
    ]


def test_philly_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = list(read_workload(FIXTURES / "cluster_job_log.json"))
    monkeypatch.setattr(philly, "_PIECE", 17)
    assert list(read_workload(FIXTURES / "cluster_job_log.json")) == whole


def test_helios_is_sorted_and_without_cpu_jobs() -> None:
    jobs = list(read_workload(FIXTURES / "cluster_log.csv"))
    assert [brief(job) for job in jobs] == [
        ("103", 0.0, 1, 249.0, "uB", "vcY"),
        ("101", 61.0, 8, 3600.0, "uA", "vcX"),
        ("106", 86400.0, 16, 10.0, "uC", "vcX"),
    ]
    assert [job.cpus for job in jobs] == [4, 32, 64]


def test_slurm_without_steps() -> None:
    jobs = list(read_workload(FIXTURES / "jobs.sacct"))
    assert [brief(job) for job in jobs] == [
        ("2000", 0.0, 1, 600.0, "bob", "short"),
        ("2001", 60.0, 4, 7200.0, "ann", "long"),
        ("2004", 1860.0, 8, 86400.0, "ann", "long"),
    ]
    assert [job.device_types for job in jobs] == [(), ("a100",), ()]
    assert [job.memory_bytes for job in jobs] == [32000 * 2**20, 64 * 2**30, 2**40]
    assert [job.cpus for job in jobs] == [8, 16, 64]


@pytest.mark.parametrize(
    ("text", "length_s"), [("00:10:00", 600.0), ("1-02:30:05", 95405.0), ("30:00:00.5", 108000.0)]
)
def test_slurm_elapsed(tmp_path: Path, text: str, length_s: float) -> None:
    path = tmp_path / "jobs.sacct"
    path.write_text(f"JobID|Submit|Elapsed|ReqTRES\n7|2024-05-01T12:00:00|{text}|gres/gpu=2\n")
    assert [job.work for job in read_workload(path)] == [length_s]


@pytest.mark.parametrize("end", ["\n", "", "\n; the end\n"])
def test_swf_of_one_job_is_recognised(tmp_path: Path, end: str) -> None:
    path = tmp_path / "one"
    path.write_text("1 0 0 60 1 -1 -1 1 60 -1 1 1 1 1 1 1 -1 -1" + end)
    assert [job.work for job in read_workload(path)] == [60]


def test_swf_is_recognised_where_its_head_is_cut_in_the_first_jobs(tmp_path: Path) -> None:
    header, job = "; what a header says\n", "1 0 0 60 1 -1 -1 1 60 -1 1 1 1 1 1 1 -1 -1\n"
    path = tmp_path / "long"
    for spare in range(len(header)):
        comments = ";" * spare + "\n" + header * ((65536 - 2 * len(job)) // len(header))
        path.write_text(comments + job * 5)
        assert recognise(path).name == "swf"


def test_swf_takes_what_was_asked_for_else_what_was_given() -> None:
    jobs = list(read_workload(FIXTURES / "cluster.swf"))
    assert [brief(job) for job in jobs] == [("1", 0.0, 8, 100.0, "3", "2"), ("3", 90.0, 16, 55.5, "3", "")]
    assert [job.memory_bytes for job in jobs] == [1024 * 1024 * 8, 0]


def test_a_declared_job_takes_its_length_on_its_gang() -> None:
    job = next(read_workload(FIXTURES / "cluster_log.csv"))
    assert job.profile.work_per_s(Spot("V100", job.num_devices, 1), Grant((0,))) == 1.0


@pytest.mark.parametrize(
    ("name", "format"),
    [
        ("cluster_job_log.json", "philly"),
        ("cluster_log.csv", "helios"),
        ("jobs.sacct", "slurm"),
        ("cluster.swf", "swf"),
    ],
)
def test_recognised_by_content(tmp_path: Path, name: str, format: str) -> None:
    assert recognise(FIXTURES / name).name == format
    bare = tmp_path / "trace"
    bare.write_bytes((FIXTURES / name).read_bytes())
    assert recognise(bare).name == format


TIRESIAS = "job_id,num_gpu,submit_time,iterations,model_name,duration,interval\n"


def test_unknown_format_lists_the_known(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("a,b\n1,2\n")
    with pytest.raises(
        FleetError, match=r"of no known format; name one: trainyard, tiresias.*It begins with 'a,b'"
    ):
        read_workload(path)
    with pytest.raises(FleetError, match=r"unknown trace format 'csv'; known: trainyard"):
        read_workload(path, "csv")
    with pytest.raises(FleetError, match="No such file"):
        read_workload(tmp_path / "nothing")


def test_profiles_are_asked_for_where_a_trace_needs_them(tmp_path: Path) -> None:
    path = tmp_path / "gavel.trace"
    path.write_text("LM (batch size 5)\tcmd\tdir\t--steps\t1\t100\t1\t1\t-1.0\t0\n")
    with pytest.raises(FleetError, match=r"give `--profiles` \(in Python `profiles`\): its throughputs"):
        read_workload(path)
    table = tmp_path / "throughputs.json"
    table.write_text(json.dumps({"v100": {"('A3C', 1)": {"null": 2.0}}}))
    with pytest.raises(FleetError, match=r"line 1, field 'job_type': got 'LM \(batch size 5\)'"):
        list(read_workload(path, profiles=table, strict=True))
    with pytest.raises(FleetError, match="a swf trace has no profiles"):
        read_workload(FIXTURES / "cluster.swf", profiles=table)


def test_a_folder_is_one_workload(tmp_path: Path) -> None:
    for name, start in (("a", 0), ("b", 5)):
        rows = "".join(f"{i},1,{start + 10 * i},9,vgg,10,0\n" for i in range(3))
        (tmp_path / f"{name}.csv").write_text(TIRESIAS + rows)
    jobs = list(read_workload(tmp_path))
    assert [job.arrival_s for job in jobs] == [0, 5, 10, 15, 20, 25]
    assert [job.name for job in jobs[:2]] == ["a/0", "b/0"]
    assert {job.virtual_cluster for job in jobs} == {"a", "b"}
    (tmp_path / "c.swf").write_bytes((FIXTURES / "cluster.swf").read_bytes())
    with pytest.raises(FleetError, match="has traces of swf, tiresias"):
        read_workload(tmp_path)


def test_unsorted_traces_keep_ties_as_they_stand(tmp_path: Path) -> None:
    path = tmp_path / "jobs.csv"
    path.write_text(
        TIRESIAS
        + '0,1,50,9,"a,b",10,0\n\n1,1,0,9,vgg,10,0\n2,1,50,9,vgg,10,0\n3,0,9,9,vgg,10,0\n4,1,0,9,vgg,10,0\n'
    )
    jobs = list(read_workload(path))
    assert [job.name for job in jobs] == ["1", "4", "0", "2"]
    assert jobs[2].model == "a,b"


def test_every_format_says_what_it_is() -> None:
    assert all(name == entry.name and entry.about for name, entry in FORMATS.items())
    assert not [entry.name for entry in FORMATS.values() if entry.needs_profiles and not entry.profiles]


def test_a_trace_is_not_held(tmp_path: Path) -> None:
    path = tmp_path / "jobs.csv"
    path.write_text(TIRESIAS + "".join(f"{i},1,{20000 - i},9,vgg,10,0\n" for i in range(20000)))
    tracemalloc.start()
    assert sum(job.num_devices for job in read_workload(path)) == 20000
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100 * 20000  # a job alone is larger
