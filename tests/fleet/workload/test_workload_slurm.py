"""Accounting records of Slurm: what is read of them, and what is left out."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainyard.fleet.errors import FleetError
from trainyard.fleet.recorded import recorded_run
from trainyard.fleet.scheduler import scheduler_of
from trainyard.fleet.workload.read import read_workload
from trainyard.hardware.parse import parse_cluster

CASES = Path(__file__).parent / "cases"

SACCT = "JobID|JobName|Submit|Start|End|State|ElapsedRaw|AllocTRES\n"
GPUS = "cpu=4,gres/gpu={},mem=8G"


def sacct(tmp_path: Path, *lines: str) -> Path:
    path = tmp_path / "jobs.sacct"
    path.write_text(SACCT + "".join(f"{line}\n" for line in lines))
    return path


def test_heterogeneous_jobs_are_one_gang_and_those_of_arrays_are_not(tmp_path: Path) -> None:
    path = sacct(
        tmp_path,
        "7+0|a|2025-03-03T08:00:00|2025-03-03T08:01:00|x|COMPLETED|600|gres/gpu:a100=4,cpu=8,mem=1G",
        "7+1|a|2025-03-03T08:00:00|2025-03-03T08:01:00|x|COMPLETED|590|gres/gpu:v100=2,cpu=2,mem=1G",
        "8_1|b|2025-03-03T08:00:10|2025-03-03T08:01:00|x|COMPLETED|60|gres/gpu:v100=1",
        "8_2|b|2025-03-03T08:00:10|2025-03-03T08:01:00|x|COMPLETED|70|gres/gpu:v100=1",
        "8_[3-9]|b|2025-03-03T08:00:10|Unknown|Unknown|PENDING|0|",
    )
    jobs = list(read_workload(path))
    assert [(job.name, job.num_devices, job.work) for job in jobs] == [
        ("7", 6, 600),
        ("8_1", 1, 60),
        ("8_2", 1, 70),
    ]
    assert [(job.device_types, job.cpus, job.memory_bytes) for job in jobs[:1]] == [((), 10, 2**31)]


def test_the_last_attempt_tells_whether_a_job_is_over(tmp_path: Path) -> None:
    line = "{}|a|2025-03-03T08:00:00|2025-03-03T08:0{}:00|x|{}|60|gres/gpu={}"
    attempts = [(7, 1, "RESIZING", 2), (8, 1, "PREEMPTED", 2), (7, 2, "COMPLETED", 1), (8, 2, "RUNNING", 2)]
    attempts.append((9, 1, "REQUEUED", 1))
    workload = read_workload(sacct(tmp_path, *(line.format(*each) for each in attempts)))
    assert [(job.name, job.num_devices, job.work) for job in workload] == [("7", 1, 120)]
    assert [str(reason) for reason in workload.left_out.reasons] == [
        "3 rows: not over yet: it is not known how long it runs (line 3, line 5, line 6)",
        "1 row: another attempt or component of a job that has a line already, or the same again (line 4)",
    ]


def test_files_of_slurm_that_were_joined_and_sorted_backwards(tmp_path: Path) -> None:
    path = sacct(
        tmp_path,
        "7|a|2025-01-31T23:00:00|2025-01-31T23:10:00|x|COMPLETED|50|gres/gpu=4",
        "7|a|2025-01-31T23:00:00|2025-01-31T23:10:00|Unknown|RUNNING|30|gres/gpu=4",
        "7|a|2025-01-31T20:00:00|2025-01-31T21:00:00|x|NODE_FAIL|20|gres/gpu=2",
        SACCT.strip(),
        "8|a|2025-01-31T23:30:00|Unknown|Unknown|PENDING|0|gres/gpu=4",
        "8|a|2025-01-31T20:00:00|2025-01-31T21:00:00|x|NODE_FAIL|20|gres/gpu=2",
        "7|a|2025-01-31T20:00:00|2025-01-31T21:00:00|x|NODE_FAIL|20|gres/gpu=2",
    )
    workload = read_workload(path, strict=True)
    jobs = [(job.name, job.num_devices, job.work, job.started_s) for job in workload]
    assert jobs == [("7", 4, 70, 3600)]
    assert [str(reason) for reason in workload.left_out.reasons] == [
        "3 rows: another attempt or component of a job that has a line already, or the same again (line 3, line 4, "
        "line 8)",
        "2 rows: not over yet: it is not known how long it runs (line 6, line 7)",
        "1 row: the first line again, with the names of the columns (line 5)",
    ]


@pytest.mark.parametrize(
    "name", ["mig-1g-5gb", "a100_1g_5gb", "a30_2g.12gb.me", "h100_3g.40gb+me.all", "mig"]
)
def test_slices_under_other_names(tmp_path: Path, name: str) -> None:
    line = "{}|a|2025-03-03T08:00:00|Unknown|x|COMPLETED|60|gres/gpu:{}=1"
    whole = ["a100-sxm4-40gb", "nvidia_h100_80gb_hbm3", "gb200"]
    lines = [line.format(number, each) for number, each in enumerate([name, *whole])]
    assert [job.device_types for job in read_workload(sacct(tmp_path, *lines))] == [(each,) for each in whole]


@pytest.mark.parametrize(
    "first", ["JobID  Submit  Elapsed", "JobIDRaw|Submit|Elapsed", "JobID,Submit,Elapsed"]
)
def test_what_sacct_printed_otherwise(tmp_path: Path, first: str) -> None:
    path = tmp_path / "jobs"
    path.write_text(f"{first}\n1 2 3\n")
    with pytest.raises(FleetError, match=r"line 1: no column JobID.* make it by sacct --parsable2"):
        list(read_workload(path))


def test_what_waits_has_no_devices_yet(tmp_path: Path) -> None:
    path = sacct(
        tmp_path,
        "6|a|2025-01-31T20:00:00|2025-01-31T21:00:00|x|COMPLETED|20|",
        "7|a|2025-01-31T20:00:00|2025-01-31T21:00:00|x|NODE_FAIL|20|gres/gpu=2",
        "7|a|2025-01-31T21:00:20|Unknown|Unknown|PENDING|0|",
        "8|a|2025-01-31T20:00:00|Unknown|Unknown|PENDING|0|",
        "9|a|2025-01-31T20:00:00|2025-01-31T21:00:00|x|COMPLETED|20|gres/gpu=2",
    )
    workload = read_workload(path)
    assert [job.name for job in workload] == ["9"]
    assert [(reason.text, reason.places) for reason in workload.left_out.reasons] == [
        ("not over yet: it is not known how long it runs", ["line 3", "line 4"]),
        ("asks for no GPU", ["line 2"]),
        ("never ran", ["line 5"]),
    ]


def test_time_limits_of_slurm(tmp_path: Path) -> None:
    path = tmp_path / "jobs.sacct"
    texts = ["2-00:00:00", "30:00", "00:00:00", "UNLIMITED", "Partition_Limit", "", "soon"]
    lines = [f"{number}|{text}|2025-03-03T08:00:00|60|gres/gpu=1" for number, text in enumerate(texts)]
    path.write_text("\n".join(["JobID|Timelimit|Submit|ElapsedRaw|AllocTRES", *lines]))
    workload = read_workload(path)
    assert [job.limit_s for job in workload] == [172800, 1800, None, None, None, None]
    assert "field 'Timelimit' cannot be used (line 8: got 'soon'" in workload.left_out.lines()[1]


def test_an_hour_that_came_twice(tmp_path: Path) -> None:
    """In Berlin it was three times two o'clock, and then two again, on 26 October 2025."""
    path = sacct(
        tmp_path,
        f"1|a|2025-10-26T02:10:00|2025-10-26T02:20:00|x|COMPLETED|60|{GPUS.format(1)}",
        f"2|a|2025-10-26T02:50:00|2025-10-26T02:30:00|x|COMPLETED|7200|{GPUS.format(1)}",
        f"3|a|2025-10-26T02:05:00|2025-10-26T03:00:00|x|COMPLETED|60|{GPUS.format(1)}",
        f"4|a|2025-10-26T03:10:00|2025-10-26T03:20:00|x|COMPLETED|60|{GPUS.format(1)}",
    )
    jobs = list(read_workload(path, timezone="Europe/Berlin"))
    assert [(job.name, job.arrival_s) for job in jobs] == [("1", 0), ("2", 2400), ("3", 3300), ("4", 7200)]
    assert [job.started_s for job in jobs] == [600, 4800, 6600, 7800]
    assert [job.work for job in read_workload(path)] == [60, 60, 7200, 60]  # as they stand; no length changes
    with pytest.raises(FleetError, match="unknown time zone 'Mars/Base'; give a name such as Europe/Berlin"):
        read_workload(path, timezone="Mars/Base")
    with pytest.raises(FleetError, match="a swf trace has seconds, no dates"):
        read_workload(CASES / "archive.swf", timezone="Europe/Berlin")


@pytest.mark.parametrize(
    ("lines", "names", "said"),
    [
        (["7|a|b|c|{}"], ["7"], ""),
        (["7|a\nb\nc|{}"], ["7"], ""),
        (
            ["7|a\n|c|{}", "8|whole|{}"],
            ["8"],
            "field 'JobID' cannot be used (line 3: got '', allowed is a number such as",
        ),
        (["7|cut off", "8|whole|{}"], ["8"], "line 2: 2 fields, but 8 columns"),
        (["7|a|2025-03-03T08:00:00", "8|whole|{}"], ["8"], "line 2: 3 fields"),
    ],
)
def test_texts_with_separators_and_line_breaks(
    tmp_path: Path, lines: list[str], names: list[str], said: str
) -> None:
    rest = f"2025-03-03T08:00:00|Unknown|x|COMPLETED|60|{GPUS.format(2)}"
    workload = read_workload(sacct(tmp_path, *(line.format(rest) for line in lines)), "slurm")
    assert [job.name for job in workload] == names
    assert said in "".join(workload.left_out.lines())


def test_a_job_of_slurm_that_two_files_have_counts_once(tmp_path: Path) -> None:
    line = "7|a|2025-{}T20:00:00|Unknown|x|COMPLETED|60|gres/gpu=2\n"
    for name, day in (("january", "01-31"), ("february", "01-31"), ("of another cluster", "02-15")):
        (tmp_path / f"{name}.txt").write_text(SACCT + line.format(day))
    workload = read_workload(tmp_path)
    assert [job.name for job in workload] == ["february/7", "of another cluster/7"]
    assert str(workload.left_out.reasons[0]) == "1 row: the same job as in another file (january/7)"


@pytest.mark.parametrize(("zone", "is_said"), [("", True), ("Z", False), ("+0100", False)])
def test_it_is_said_where_dates_are_taken_as_utc(tmp_path: Path, zone: str, is_said: bool) -> None:
    path = sacct(tmp_path, f"7|a|2025-01-31T20:00:00{zone}|Unknown|x|COMPLETED|60|gres/gpu=2")
    workload = read_workload(path)
    assert len(list(workload)) == 1
    assert ("taken as UTC" in "".join(workload.left_out.lines())) == is_said
    given = read_workload(path, timezone="Europe/Berlin")
    assert len(list(given)) == 1
    assert not given.left_out.lines()


def test_a_job_does_not_start_before_it_is_eligible() -> None:
    """Three jobs of which each waits for the one before, and one with a begin time."""
    path = CASES / "sacct_eligible.txt"
    workload = read_workload(path)
    jobs = list(workload)
    hour_s = 3600.0
    assert [job.arrival_s for job in jobs] == [0, hour_s, 2 * hour_s, 24 * hour_s]
    assert [text.startswith("jobs that were held") for text in workload.left_out.remarks] == [False, True]
    for policy in ("fifo", "srtf"):
        run = scheduler_of(policy).simulate(jobs, parse_cluster("1x2xV100"))
        assert run.names == ("301", "302", "303", "304")
        assert run.finish_s.tolist() == [hour_s, 2 * hour_s, 3 * hour_s, 25 * hour_s]
    recorded = recorded_run(jobs, parse_cluster("1x2xV100"))
    assert recorded is not None
    assert recorded.finish_s.tolist() == [hour_s, 2 * hour_s, 3 * hour_s, 25 * hour_s]


def test_eligible_priority_and_quality_of_service(tmp_path: Path) -> None:
    path = tmp_path / "jobs.sacct"
    lines = [
        "1|high|4294967295|1000000000|1000000050|1000000080|COMPLETED|60|gres/gpu=1",
        "2|high|7|1000000001|Unknown|1000000080|COMPLETED|60|gres/gpu=1",
        "3|||1000000002|1000000100|1000000090|COMPLETED|60|gres/gpu=1",
        "4|low|5|1000000003|1000000003|1000000100|NODE_FAIL|60|gres/gpu=1",
        "4|low|9|1000000160|1000000300|1000000310|COMPLETED|60|gres/gpu=1",
        "5|low|soon|1000000004|1000000004|1000000310|COMPLETED|60|gres/gpu=1",
        "6|low|1|1000000005|1000000001|1000000310|COMPLETED|60|gres/gpu=1",
    ]
    path.write_text(
        "\n".join(["JobID|QOS|Priority|Submit|Eligible|Start|State|ElapsedRaw|AllocTRES", *lines])
    )
    workload = read_workload(path)
    assert [(job.name, job.arrival_s, job.priority, job.qos) for job in workload] == [
        ("2", 0, 7, "high"), ("4", 2, 9, "low"), ("6", 4, 1, "low"), ("1", 49, 4294967295, "high"), ("3", 89, 0, ""),
    ]  # fmt: skip
    assert [reason.places for reason in workload.left_out.reasons] == [["line 7"], ["line 6"]]
