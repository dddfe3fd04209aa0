"""Files that people have: what is read of them, and what is left out, by reason and place."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from trainyard.cli import main as cli
from trainyard.fleet.errors import FleetError
from trainyard.fleet.scheduler import scheduler_of
from trainyard.fleet.workload.read import Workload, read_workload
from trainyard.hardware.parse import parse_cluster
from trainyard.reading.left_out import LeftOut

CASES = Path(__file__).parent / "cases"


def jobs_of(name: str) -> dict[str, tuple[float, int, float]]:
    """Arrival, devices and length of each job."""
    return {job.name: (job.arrival_s, job.num_devices, job.work) for job in read_workload(CASES / name)}


def left_out(workload: Workload) -> dict[str, tuple[int, list[str]]]:
    """How many rows, and where the first are, by reason; all jobs are taken, and counts add up."""
    num_jobs = len(list(workload))
    found = workload.left_out
    assert found.num_used == num_jobs
    assert found.num_rows == num_jobs + found.num_left_out
    return {each.text: (each.count, each.places) for each in found.reasons}


def test_states_and_names_of_slurm() -> None:
    workload = read_workload(CASES / "sacct_states_and_names.txt")
    jobs = {job.name: job for job in workload}
    assert {name: (job.num_devices, job.work) for name, job in jobs.items()} == {
        "1001": (8, 177896), "1002": (1, 4188), "1004": (2, 7200), "1005": (4, 205), "1006": (16, 12600),
        "1007": (1, 86415), "1010": (1, 600),
    }  # fmt: skip
    assert [jobs[name].limit_s for name in ("1001", "1002", "1004", "1007")] == [None, 14400, 86400, 86400]
    assert [jobs[name].started_s for name in ("1001", "1002", "1010")] == [600, 330, 7200]
    assert [jobs[name].user for name in ("1002", "1010")] == ["u01", "u05"]
    assert workload.zero_s == 1740988800.0
    assert left_out(read_workload(CASES / "sacct_states_and_names.txt")) == {
        "never ran": (2, ["line 4", "line 10"]),
        "asks for no GPU": (1, ["line 13"]),
        "not over yet: it is not known how long it runs": (1, ["line 9"]),
    }


def test_jobs_of_slurm_that_were_requeued() -> None:
    assert jobs_of("sacct_requeued.txt") == {"440017": (0, 2, 15900), "440018": (600, 4, 1200)}
    assert [job.started_s for job in read_workload(CASES / "sacct_requeued.txt")] == [300, 660]
    assert left_out(read_workload(CASES / "sacct_requeued.txt")) == {
        "another attempt or component of a job that has a line already, or the same again": (
            4,
            ["line 4", "line 6", "line 7"],
        ),
        "a step of a job": (2, ["line 3", "line 5"]),
    }


def test_resources_of_slurm() -> None:
    jobs = {job.name: job for job in read_workload(CASES / "sacct_tres.txt")}
    assert {name: job.num_devices for name, job in jobs.items()} == {
        "1": 1, "2": 4, "3": 1, "4": 8, "5": 2, "8": 1, "9": 1,
    }  # fmt: skip
    assert [jobs[n].device_types for n in "1234"] == [("a100",), (), ("nvidia_geforce_rtx_2080_ti",), ()]
    assert [jobs[n].memory_bytes / 2**30 for n in "589"] == [2048, 0, 1536]
    assert left_out(read_workload(CASES / "sacct_tres.txt")) == {
        "asks for slices or shards of GPUs, which are no whole devices": (3, ["line 7", "line 8", "line 11"])
    }


def test_seconds_since_1970() -> None:
    jobs = list(read_workload(CASES / "sacct_epoch_seconds.txt"))
    assert [job.arrival_s for job in jobs] == [0, 2400, 4200, 8400]
    assert [job.started_s - job.arrival_s for job in jobs if job.started_s is not None] == [300, 900, 600, 1]
    assert [job.work for job in jobs] == [1500, 3600, 177896, 205]


def test_the_standard_workload_format() -> None:
    assert jobs_of("archive.swf") == {
        "1": (0, 8, 600), "4": (90, 16, 1200), "5": (120, 4, 300.5), "6": (150, 8, 1000), "7": (180, 128, 50),
        "10": (205, 1, 100), "9": (210, 8, 700),
    }  # fmt: skip
    jobs = list(read_workload(CASES / "archive.swf"))
    assert [(job.started_s, job.limit_s) for job in jobs[:4]] == [
        (10, 900),
        (95, 1800),
        (120, None),
        (170, 4000),
    ]
    assert [job.account for job in jobs[:1]] == ["1"]
    assert left_out(read_workload(CASES / "archive.swf")) == {
        "another number of fields than of columns": (1, ["line 22"]),
        "it is not known how long it ran, if it did": (2, ["line 9", "line 18"]),
        "a part of a job that has another line": (2, ["line 15", "line 16"]),
        "ran for no time": (1, ["line 10"]),
    }
    with pytest.raises(FleetError, match=r"archive\.swf, line 22: 16 fields, but 18 columns"):
        list(read_workload(CASES / "archive.swf", strict=True))


def test_parts_alone_are_the_job(tmp_path: Path) -> None:
    path = tmp_path / "parts.swf"
    rest = "8 -1 -1 8 4000 -1 {} 4 1 1 1 1 -1 -1\n"
    path.write_text(f"6 150 20 400 {rest.format(2)}6 150 300 600 {rest.format(3)}")
    assert [(job.work, job.started_s) for job in read_workload(path)] == [(1000, 170)]
    path.write_text(f"5 150 20 4\n6 150 20 400 {rest.format(2)}6 150 300 600 {rest.format(3)}")
    assert [(job.work, job.started_s) for job in read_workload(path)] == [(1000, 170)]
    path.write_text(f"6 150 20 400 {rest.format(1)}6 150 300 600 {rest.format(1)}")
    with pytest.raises(FleetError, match="allowed is a number that no other job has"):
        list(read_workload(path))


@pytest.mark.parametrize("policy", ["fifo", "sjf", "srtf"])
def test_two_jobs_of_the_whole_cluster_run_one_after_the_other(policy: str) -> None:
    run = scheduler_of(policy).simulate(read_workload(CASES / "two_gangs.csv"), parse_cluster("100x1"))
    assert sorted(run.completion_s) == [3600, 7200]


def test_lines_that_end_in_cr_alone() -> None:
    assert jobs_of("cr_only.csv") == {"a": (0, 1, 10), "b": (1, 2, 20)}


def test_philly_takes_the_last_attempt_that_ended_and_its_clocks(tmp_path: Path) -> None:
    def job(name: str, *attempts: tuple[str | None, str | None, int]) -> object:
        return {
            "status": "Pass", "vc": "a", "jobid": name, "submitted_time": "2017-11-05 00:30:00", "user": "u",
            "attempts": [
                {"start_time": start, "end_time": end, "detail": [{"ip": "m", "gpus": ["gpu0"] * size}]}
                for start, end, size in attempts
            ],
        }  # fmt: skip

    path = tmp_path / "cluster_job_log"
    log = [
        job(
            "resized",
            ("2017-11-05 00:31:00", "2017-11-05 00:32:00", 1),
            ("2017-11-05 00:40:00", "2017-11-05 00:50:00", 8),
        ),
        job("over the change", ("2017-11-05 00:30:00", "2017-11-05 02:30:00", 2)),
        job("in the hour that came twice", ("2017-11-05 01:50:00", "2017-11-05 01:10:00", 2)),
        job(
            "in it, too",
            ("2017-11-05 00:40:00", "2017-11-05 01:45:00", 1),
            ("2017-11-05 01:40:00", "2017-11-05 02:10:00", 1),
        ),
        job("runs", ("2017-11-05 00:31:00", "2017-11-05 00:32:00", 1), ("2017-11-05 00:40:00", None, 1)),
        job("backwards", ("2017-11-06 01:50:00", "2017-11-06 01:10:00", 2)),
        job("waits"),
    ]
    path.write_text(json.dumps(log, indent=0))
    workload = read_workload(path)
    assert [(each.name, each.num_devices, each.work, each.started_s) for each in workload] == [
        ("resized", 8, 660, 60), ("over the change", 2, 10800, 0), ("in the hour that came twice", 2, 1200, 4800),
        ("in it, too", 1, 5700, 600),
    ]  # fmt: skip
    assert [str(reason)[:60].strip() for reason in workload.left_out.reasons] == [
        "1 row: not the fields of a job (line 152: an attempt ends at",
        "1 row: not over yet: it is not known how long it runs (line",
        "1 row: never ran (line 174)",
    ]


OWN = "name,arrival_s,num_devices,length_s\n"


def test_what_cannot_be_read_is_left_out_and_strict_stops(tmp_path: Path) -> None:
    path = tmp_path / "jobs.csv"
    path.write_text(
        OWN + "a,0,1,1\nb,0,1\nc,0,two,1\nd,0,three,1\na,9,1,1\n" + '"e\nf",1,1,1\n"g,1,1,1\nh,2,1,1\n'
    )
    workload = read_workload(path)
    assert [job.name for job in workload] == ["a", "e\nf", "h"]
    assert workload.left_out.lines() == (
        "left out: 5 of 8 rows",
        "  2 rows: field 'num_devices' cannot be used (line 4: got 'two', allowed is a whole number of at least 1; "
        "line 5)",
        "  1 row: another number of fields than of columns (line 3: 3 fields, but 4 columns: name, arrival_s, "
        "num_devices, length_s)",
        "  1 row: not CSV (line 9: not CSV: a quote is not closed)",
        "  1 row: field 'name' cannot be used (line 6: got 'a', allowed is a name that no other row has)",
    )
    assert workload.left_out.warning.startswith("warning: 5 of 8 rows cannot be read")
    with pytest.raises(FleetError, match="line 3: 3 fields"):
        list(read_workload(path, strict=True))


def test_a_limit_counts_the_rest(tmp_path: Path) -> None:
    path = tmp_path / "jobs.csv"
    path.write_text(OWN + "a,0,1,1\nb,0,1\nc,1,1,1\nd,2,1,1\n")
    assert left_out(read_workload(path, limit=1)) == {
        "another number of fields than of columns": (1, ["line 3"]),
        "after the first 1 jobs, which is the limit that was given": (2, []),
    }


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("jobs.csv", OWN, "gives no job to replay: it has no rows"),
        ("jobs.csv", OWN + "a,0,1,x\n", "1 row: field 'length_s' cannot be used (line 2: got 'x'"),
        ("jobs.yaml", "jobs: []\n", "gives no job to replay: it has no rows"),
        ("cluster_job_log", '[{"attempts": [], "submitted_time": 1}]', "1 row: never ran (line 1)"),
        ("a.swf", "1 0 0 0 1 -1 -1 1 60 -1 1 1 1 1 1 1 -1 -1", "gives no job to replay: 1 row: ran for no time"),
    ],
)  # fmt: skip
def test_no_job_at_all(tmp_path: Path, name: str, text: str, said: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(FleetError, match=re.escape(said)):
        list(read_workload(path))


def test_a_folder_names_its_files_and_has_one_calendar(tmp_path: Path) -> None:
    head = "job_id,user,vc,gpu_num,cpu_num,submit_time,start_time,duration\n"
    (tmp_path / "earth.csv").write_text(head + "1,u,v,1,1,2020-06-09 12:00:00,2020-06-09 12:00:05,10\n")
    (tmp_path / "mars.csv").write_text(
        head + "1,u,v,1,1,2020-06-09 10:00:00,,10\n2,u,v,0,1,2020-06-09 10:00:00,,10\n"
    )
    workload = read_workload(tmp_path)
    assert [(job.name, job.arrival_s, job.started_s) for job in workload] == [
        ("mars/1", 0, None), ("earth/1", 7200, 7205),
    ]  # fmt: skip
    assert [str(reason) for reason in workload.left_out.reasons] == [
        "1 row: asks for no device (mars.csv, line 3)"
    ]


def test_few_faults_are_no_warning() -> None:
    found = LeftOut()
    found.num_rows = 100
    for line, text in enumerate(["a"] * 3 + ["b"] * 50, 1):
        found.add(text, CASES, line)
    assert found.warning == ""


def test_the_command_line_says_what_was_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    simulate = (
        "fleet",
        "simulate",
        "--trace",
        f"{CASES}/sacct_states_and_names.txt",
        "--cluster",
        "4x16xV100",
    )
    page = tmp_path / "page.html"
    assert cli.main([*simulate, "--json", "--html", str(page)]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert (rows["num_rows"], rows["num_jobs"], sum(each["num_rows"] for each in rows["left_out"])) == (
        11,
        7,
        4,
    )
    assert rows["left_out"][0] == {
        "reason": "never ran", "cannot_be_read": False, "num_rows": 2, "first": ["line 4", "line 10"], "example": "",
    }  # fmt: skip
    assert "Left out: 4 of 11 rows of the trace" in page.read_text()
    assert cli.main([*simulate, "--limit", "3", "--strict"]) == 0
    capsys.readouterr()
    assert cli.main(simulate) == 0
    assert "left out: 4 of 11 rows\n  2 rows: never ran (line 4, line 10)\n" in capsys.readouterr().out


def test_the_traces_of_acme(tmp_path: Path) -> None:
    """Those of Kalos count durations from the submission; zones are named, and are not the same."""
    path = tmp_path / "trace_seren.csv"
    head = "job_id,user,node_num,gpu_num,cpu_num,type,state,submit_time,start_time,end_time,duration,queue,gpu_time\n"
    rows = [
        "7,u1,1,8,128,Other,FAILED,{0} 00:18:22+08:00,{0} 00:18:54+08:00,{0} 00:20:51+08:00,117,32,936.0",
        "6,u2,1,8,128,Pretrain,COMPLETED,{0} 00:17:22+08:00,{0} 00:20:00+08:00,{0} 01:20:00+08:00,3600,158,28800.0",
        "8,u2,1,0,4,CPU,COMPLETED,{0} 00:17:22+08:00,{0} 00:20:00+08:00,{0} 01:20:00+08:00,3600,158,0.0",
        "9,u2,1,1,4,Debug,CANCELLED,{0} 00:17:22+08:00,,{0} 01:20:00+08:00,0,3758,0.0",
        "10,u2,1,1,4,Debug,RUNNING,{0} 00:17:22+08:00,{0} 00:20:00+08:00,,0,3758,0.0",
        "11,u2,1,1,4,Debug,FAILED,{0} 00:17:22+08:00,{0} 00:20:00+08:00,{0} 00:20:00+08:00,0,158,0.0",
    ]
    path.write_text(head + "".join(f"{row.format('2023-03-01')}\n" for row in rows))
    workload = read_workload(path)
    jobs = list(workload)
    assert [(job.name, job.arrival_s, job.num_devices, job.work, job.started_s) for job in jobs] == [
        ("6", 0, 8, 3600, 158), ("7", 60, 8, 117, 92),
    ]  # fmt: skip
    assert [(job.user, job.virtual_cluster, job.cpus) for job in jobs[:1]] == [("u2", "Pretrain", 128)]
    assert str(workload.zero) == "2023-02-28 16:17:22+00:00"
    assert left_out(read_workload(path)) == {
        "asks for no device": (1, ["line 4"]),
        "never ran": (1, ["line 5"]),
        "not over yet: it is not known how long it runs": (1, ["line 6"]),
        "ran for no time": (1, ["line 7"]),
    }
    kalos = tmp_path / "trace_kalos.csv"
    kalos.write_text(
        "job_id,user,node_num,gpu_num,cpu_num,mem_per_pod_GB,shared_mem_per_pod,type,state,submit_time,start_time,"
        "end_time,fail_time,stop_time,duration,queue,gpu_time\n"
        "dlc,u1,8,64,960,1000,100.0,Other,FAILED,2023-05-17 11:00:58+00:00,2023-05-17 11:01:08+00:00,"
        "2023-05-17 11:01:16+00:00,2023-05-17 11:01:16+00:00,,18,10.0,1152.0\n"
    )
    assert [(job.num_devices, job.work, job.started_s) for job in read_workload(kalos)] == [(64, 8, 10)]


@pytest.mark.parametrize(
    ("header", "said"),
    [
        ("job_id,user,gpu_num,cpu_num,kind,submit_time,start_time,end_time", "acme, which needs type"),
        ("name,arrival_s,devices,length_s", "trainyard, which needs num_devices"),
        ("job_id,submission_time,duration", "elasticflow, which needs num_gpu"),
        (
            "job_id,num_gpu,submit_time,model_name,duration,iterations,ddl",
            "tiresias, which has no ddl",
        ),
    ],
)
def test_the_nearest_format_is_named(tmp_path: Path, header: str, said: str) -> None:
    path = tmp_path / "jobs.csv"
    path.write_text(f"{header}\n1\n")
    with pytest.raises(FleetError, match=f"is of no known format.*The nearest is {said}$"):
        read_workload(path)
