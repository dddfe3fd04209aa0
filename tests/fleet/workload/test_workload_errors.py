"""What is wrong with a trace: file, line, field, what was given, and what is allowed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from trainyard.fleet.errors import FleetError
from trainyard.fleet.workload.read import read_workload

HELIOS = "job_id,user,vc,gpu_num,cpu_num,submit_time,duration\n"
TIRESIAS = "job_id,num_gpu,submit_time,iterations,model_name,duration,interval\n"
SACCT = "JobID|Submit|ElapsedRaw|AllocTRES\n"


@pytest.mark.parametrize(
    ("format", "text", "said"),
    [
        (
            "tiresias",
            TIRESIAS + "0,1,0,9,vgg,10,0\n1,two,5,9,vgg,10,0\n",
            "line 3, field 'num_gpu': got 'two'",
        ),
        ("tiresias", TIRESIAS + "0,1.5,0,9,vgg,10,0\n", "line 2, field 'num_gpu': got '1.5'"),
        ("tiresias", TIRESIAS + "0,1,-4,9,vgg,10,0\n", "line 2, field 'submit_time': got '-4'"),
        ("tiresias", TIRESIAS + "0,1,4,9,vgg,nan,0\n", "line 2, field 'duration': got 'nan'"),
        ("tiresias", TIRESIAS + "0,1,4\n", "line 2: 3 fields, but 7 columns"),
        (
            "tiresias",
            "job_id,num_gpu\n0,1\n",
            "line 1: no column submit_time, model_name, duration; it has job_id, num_gpu",
        ),
        ("helios", HELIOS + "7,u,v,1,1,yesterday,10\n", "line 2, field 'submit_time': got 'yesterday'"),
        (
            "slurm",
            SACCT + "7|2024-05-01T12:00:00|60|gres/gpu=many\n",
            "line 2, field 'AllocTRES': got 'gres/gpu=many'",
        ),
        ("slurm", SACCT + "7|2024-05-01T12:00:00|60|two gpus\n", "line 2, field 'AllocTRES': got 'two gpus'"),
        (
            "slurm",
            SACCT + "7|2024-05-01T12:00:00|60|cpu=many,gres/gpu=2\n",
            "line 2, field 'AllocTRES': got 'cpu=many,gres/gpu=2', allowed is cpu= and a number such as 16",
        ),
        (
            "slurm",
            SACCT + "7|2024-05-01T12:00:00|60|cpu=nan,gres/gpu=2\n",
            "allowed is cpu= and a number such as 16",
        ),
        ("slurm", SACCT + "7|2024-05-01T12:00:00|60|gres/gpu=²\n", "allowed is gres/gpu= and a whole number"),
        (
            "slurm",
            "JobID|Submit|ElapsedRaw|AllocTRES|ReqTRES\n7|2024-05-01T12:00:00|60||gres/gpu=2,mem=much\n",
            "line 2, field 'ReqTRES': got 'gres/gpu=2,mem=much', allowed is mem= and a size such as 64G",
        ),
        (
            "slurm",
            "JobID|Submit|AllocTRES\n7|2024-05-01T12:00:00|gres/gpu=1\n",
            "line 1: no column ElapsedRaw or Elapsed; add it to --format",
        ),
        ("swf", "1 2 3\n", "line 1: 3 fields, but 18 columns"),
        ("swf", "; x\n\n1 0 1 soon 1 1 1 1 1 1 1 1 1 1 1 1 1 1\n", "line 3, field 'run_s': got 'soon'"),
        ("philly", "\n{}", "line 2: a Philly log is a JSON list"),
        ("philly", '[\n\n{"attempts": []}, \n {"attempts": [', "line 4: not JSON, or cut off"),
        ("philly", '[\n\n{"attempts": []},\n\n{"status": "Pass"}]', "line 5: a job without field 'attempts'"),
        ("philly", '[\n{"attempts": 7}]', "line 2: 'int' object is not iterable"),
        ("philly", "[\n", "line 2: not JSON, or cut off"),
        ("philly", "[\n" + "[" * 60_000, "line 2: lists too deep in each other"),
    ],
)
def test_errors_say_where_and_what_is_allowed(tmp_path: Path, format: str, text: str, said: str) -> None:
    path = tmp_path / "trace"
    path.write_text(text)
    with pytest.raises(FleetError) as error:
        list(read_workload(path, format, strict=True))
    assert str(path) in str(error.value)
    assert said in str(error.value)


def test_a_philly_log_that_is_not_utf_8(tmp_path: Path) -> None:
    path = tmp_path / "cluster_job_log"
    path.write_bytes(b'[\n{"attempts": []},\n{"attempts": [], "user": "J\xf6rg"}]')
    with pytest.raises(FleetError, match=f"^{re.escape(str(path))}, line 3: byte 0xf6 is not UTF-8"):
        list(read_workload(path, "philly", strict=True))


@pytest.mark.parametrize("limit", [0, -1])
def test_a_limit_below_one(tmp_path: Path, limit: int) -> None:
    with pytest.raises(FleetError, match=f"limit {limit}: it is the number of jobs to take, at least 1"):
        read_workload(tmp_path / "any", limit=limit)


def test_a_limit_takes_the_first_jobs(tmp_path: Path) -> None:
    for name in ("b", "a"):
        (tmp_path / f"{name}.csv").write_text("name,arrival_s,num_devices,length_s\n1,5,1,1\n2,0,1,1\n")
    assert [job.name for job in read_workload(tmp_path / "a.csv", limit=1)] == ["2"]
    assert [job.name for job in read_workload(tmp_path, limit=3)] == ["a/2", "b/2", "a/1"]
    assert len(list(read_workload(tmp_path, limit=9))) == 4


OWN = b"name,arrival_s,num_devices,length_s"
LONG = 131_073  # one more than a field may have


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (OWN + b",length_s\na,0,1,1,1\n", "line 1: 2 columns are called 'length_s', columns 4, 5; keep one"),
        (OWN + b"\na,0,1,1\n\0\n", "line 3: NUL is no text"),
        (OWN + b"\nJ\xf6rg,0,1,1\n", "line 2: byte 0xf6 is not UTF-8"),
        (OWN + b"\n" + b"x" * LONG + b",0,1,1\n", "line 2: a field of 131,073 characters, 'xxx"),
        (OWN + b'\n"' + b"x" * LONG + b'",0,1,1\n', "line 2: not CSV: field larger than field limit (131072)"),
        (OWN + b'\n"a\rb",0,1,1\n"c"\rd,0,1,1\n', "line 3: not CSV: new-line character"),
        (OWN + b"\na,0,1," + b"1" * 2**20, "line 2: more than 1,048,576 bytes"),
        (OWN + b"\na,0,1,1e31\n", "field 'length_s': got '1e31', allowed is a number of at least 0 and at most 1e+30"),
        (OWN + b"\na,0,1e300,1\n", "got '1e300', allowed is a whole number of at least 1 and at most 1,000,000"),
        (OWN + b",user\na,0,1,1," + b"u" * 1001 + b"\n", "field 'user': got 'uuu"),
        (OWN + b",max_devices\na,0,1,1,1e300\n", "field 'max_devices': got '1e300'"),
        (OWN + b",gang\na,0,1,1," + b"9" * 5000 + b"\n", "field 'gang': got '999"),
        (b",".join(b"c%d" % i for i in range(100_000)) + b"\n", "line 1: no column name, arrival_s, num_devices;"),
    ],
)  # fmt: skip
def test_tables_that_are_damaged_or_huge(tmp_path: Path, data: bytes, said: str) -> None:
    path = tmp_path / "jobs.csv"
    path.write_bytes(data)
    with pytest.raises(FleetError) as error:
        list(read_workload(path, "trainyard", strict=True))
    assert str(error.value).startswith(f"{path}, line ")
    assert said in str(error.value)
    assert len(str(error.value)) < 1000


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[\n{"attempts": [],\n"attempts": []}]', "line 2: key 'attempts' stands twice"),
        ('[\n{"attempts": ' + "9" * 5000 + "}]", "line 2: Exceeds the limit"),
    ],
)
def test_philly_logs_that_are_damaged(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "cluster_job_log"
    path.write_text(text)
    with pytest.raises(FleetError, match=re.escape(said)):
        list(read_workload(path, "philly", strict=True))
