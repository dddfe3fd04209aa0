"""Trainyard's own form of a workload."""

from __future__ import annotations

import re
from dataclasses import replace
from operator import attrgetter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainyard.fleet.errors import FleetError
from trainyard.fleet.workload.attempts import Attempt
from trainyard.fleet.workload.job import Grant, Job, Spot, declared_job
from trainyard.fleet.workload.own import COLUMNS, read_form, write_jobs
from trainyard.fleet.workload.read import read_workload, recognise
from trainyard.fleet.workload.readers.pollux import Unmeasured
from trainyard.fleet.workload.speeds import Speeds

PLAIN = declared_job("plain", 0.0, 4, 3600.5)
FULL = Job(
    "full, with a comma", 12.25, 2, 1e6, Speeds((("V100", 1, 5.5), ("V100", 2, 0.1 + 0.2))),
    min_devices=1, max_devices=8, device_types=("V100", "K80"), user="ann", virtual_cluster='the "red"', weight=2.5,
    deadline_s=99.0, guaranteed=False, cpus=3.5, memory_bytes=2.0**31, busy=0.25, model="ResNet: 50", batch_size=256,
    priority=3, qos="night", gang=(1, 1), pinned_cell="mine", yields=True, limit_s=3600.0, account="vision",
    attempts=(Attempt(13.5, 2),),
)  # fmt: skip
PART = declared_job(
    "123",
    12.25,
    1,
    60.0,
    busy=0.5,
    model="no",
    attempts=(Attempt(13.0, 1, 0.1 + 15.2), Attempt(1e9, 2, 1e9 + 1)),
)
NULL = declared_job("null", 13.0, 1, 60.0, user="~")


@pytest.mark.parametrize("name", ["jobs.csv", "jobs.yaml"])
def test_what_is_written_is_read(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    jobs = [PLAIN, FULL, PART, NULL]
    assert write_jobs(iter(jobs), path) == 4
    assert recognise(path).name == "trainyard"
    assert list(read_workload(path)) == jobs


TEXT = st.text(st.characters(codec="utf-8", categories=["L", "N", "P", "S"]), min_size=1, max_size=9)
SIZE = st.floats(0, 1e9)
JOBS = st.builds(
    declared_job, TEXT, SIZE, st.integers(1, 4096), SIZE, st.floats(1e-3, 1),
    user=TEXT, model=TEXT, weight=st.floats(1e-6, 1e12), deadline_s=st.none() | SIZE, guaranteed=st.booleans(),
    batch_size=st.integers(0, 9),
)  # fmt: skip


@settings(max_examples=50)
@given(
    st.lists(JOBS, min_size=1, max_size=4, unique_by=attrgetter("name")),
    st.sampled_from(["jobs.csv", "jobs.yml"]),
)
def test_any_jobs_survive(tmp_path_factory: pytest.TempPathFactory, jobs: list[Job], name: str) -> None:
    jobs.sort(key=lambda job: job.arrival_s)
    path = tmp_path_factory.mktemp("own") / name
    write_jobs(jobs, path)
    assert list(read_workload(path, "trainyard")) == jobs


def test_three_columns_and_a_length_are_enough(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text("name,arrival_s,num_devices,length_s\nb,5,2,10\na,0,1,7.5\n")
    assert list(read_workload(path)) == [declared_job("a", 0.0, 1, 7.5), declared_job("b", 5.0, 2, 10.0)]


def test_yaml_by_hand(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(
        "# two jobs\njobs:\n- {name: b, arrival_s: 5, num_devices: 2, work: 100, speeds: 'T4:2=4', guaranteed: no}\n"
        "- name: a\n  arrival_s: 0\n  num_devices: 1\n  length_s: 10\n  deadline_s: null\n"
    )
    first, second = read_workload(path)
    assert first == declared_job("a", 0.0, 1, 10.0)
    assert (second.work, second.guaranteed) == (100, False)
    assert second.profile.work_per_s(Spot("T4", 2, 1), Grant((0, 1))) == 4


HEAD = "name,arrival_s,num_devices,length_s"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            f"{HEAD}\na,0,0,1\n",
            "line 2, field 'num_devices': got '0', allowed is a whole number of at least 1",
        ),
        (f"{HEAD}\na,0,1,1\n,0,1,1\n", "line 3, field 'name': got ''"),
        (f"{HEAD}\na,,1,1\n", "line 2, field 'arrival_s': got ''"),
        (
            f"{HEAD}\na,5,1,1\na,0,1,1\n",
            "line 2, field 'name': got 'a', allowed is a name that no other row has",
        ),
        (
            f"{HEAD}\na,0,1,\n",
            "line 2, field 'length_s': got '', allowed is either length_s, or work and speeds",
        ),
        (
            f"{HEAD},work\na,0,1,1,1\n",
            "field 'length_s': got '1', allowed is either length_s, or work and speeds",
        ),
        (
            f"{HEAD},colour\na,0,1,1,red\n",
            "field 'colour': got 'red', allowed is no such field; there are name, arrival_s",
        ),
        (f"{HEAD},busy\na,0,1,1,1.5\n", "field 'busy': got '1.5', allowed is a number above 0 and at most 1"),
        (
            f"{HEAD},gang\na,0,3,1,2 2\n",
            "field 'gang': got '2 2', allowed is whole numbers above 0 that add up to ",
        ),
        *(
            (
                f"{HEAD},weight\na,0,1,1,1\nb,0,1,1,{weight}\n",
                f"line 3, field 'weight': got '{weight}', allowed is a finite number above 0",
            )
            for weight in ("0", "-1", "nan", "inf", "heavy")
        ),
        (f"{HEAD},gang\na,0,3,1,4 -1\n", "field 'gang': got '4 -1'"),
        (f"{HEAD},guaranteed\na,0,1,1,maybe\n", "field 'guaranteed': got 'maybe', allowed is yes or no"),
        (f"{HEAD},max_devices\na,0,4,1,2\n", "allowed is a number from min_devices to max_devices, 4 to 2"),
        (
            "name,arrival_s,num_devices,work,speeds\na,0,1,1,fast\n",
            "field 'speeds': speed 'fast' is not TYPE:DEVICES=WORK_PER_S",
        ),
        ("name,arrival_s,num_devices,work\na,0,1,1\n", "field 'speeds': no speeds given; write for example"),
    ],
)
def test_errors_in_csv(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "mine.csv"
    path.write_text(text)
    with pytest.raises(FleetError) as error:
        list(read_workload(path, strict=True))
    assert str(error.value).startswith(f"{path}, line ")
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "jobs:\n- name: a\n  arrival_s: 0\n  num_devices: two\n  length_s: 1\n",
            "line 2, field 'num_devices': got 'two'",
        ),
        ("jobs:\n- {name: a\n", "line 3: not YAML"),
        (
            "jobs:\n- {name: a, arrival_s: 0, num_devices: 1, length_s: [1]}\n",
            "line 2: a job is a mapping of name,",
        ),
        ("jobs:\n\n- 7\n", "line 3: a job is a mapping"),
        ("jobs: 3\n", "line 1: no list 'jobs:'"),
        ("jobs:\n- {name: a, num_devices: 1, length_s: 1}\n", "line 2, field 'arrival_s': got ''"),
        ("jobs:\n- !!python/object/apply:os.system ['true']\n", "line 2: not YAML without code: tag"),
        (
            "jobs:\n- " + "[" * 60_000,
            "line 2: lists or mappings too deep in each other; allowed are 64 levels",
        ),
        ("jobs:\n" + "".join(f"{'  ' * i}- a:\n" for i in range(1000)), "too deep in each other"),
    ],
)
def test_errors_in_yaml(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(FleetError) as error:
        list(read_workload(path, "trainyard", strict=True))
    assert str(error.value).startswith(f"{path}, line ")
    assert said in str(error.value)


def test_a_form_that_is_too_deep() -> None:
    for text in ("[" * 60_000, '{"a":' * 10_000):
        with pytest.raises(FleetError, match=r"^the job, line 1: lists or mappings too deep in each other"):
            read_form(text, Path("the job"))


def test_a_file_that_is_not_utf_8(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_bytes(b"jobs:\n- {name: a,\n   user: J\xf6rg, arrival_s: 0, num_devices: 1, length_s: 1}\n")
    said = f"{path}, line 3: byte 0xf6 is not UTF-8; give a text file, saved in UTF-8"
    with pytest.raises(FleetError, match=f"^{re.escape(said)}$"):
        list(read_workload(path, strict=True))


def test_what_is_not_a_table_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(FleetError, match="has a Unmeasured, which is not a table of speeds; write tabulated"):
        write_jobs([replace(PLAIN, profile=Unmeasured("bert"))], tmp_path / "jobs.csv")


def test_every_column_is_documented() -> None:
    from trainyard.fleet.workload import own

    assert own.__doc__ is not None
    assert [name for name in COLUMNS if name not in own.__doc__] == []
