"""Tasks of Slurm are ranks, and no task trains everything."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from trainyard.cli import main as cli
from trainyard.job.run.processes.slurm_step import hosts_of, join_slurm_step

LISTS = (Path(__file__).parent / "cases" / "nodelists.txt").read_text().splitlines()[1:]
# As Slurm 22.05 sets them for the last of four tasks on two nodes.
TASK = {
    "SLURM_JOB_ID": "17", "SLURM_STEP_ID": "2", "SLURM_NTASKS": "4", "SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "3",
    "SLURM_LOCALID": "1", "SLURM_NODEID": "1", "SLURM_STEP_TASKS_PER_NODE": "2(x2)", "SLURM_STEP_NODELIST": "gpu[07,09]",
    "SLURM_JOB_NODELIST": "gpu[05,07,09]",
}  # fmt: skip
BATCH = {"SLURM_JOB_ID": "17", "SLURM_NTASKS": "4", "SLURM_PROCID": "0", "SLURM_JOB_NODELIST": "gpu[07,09]"}


@pytest.mark.parametrize("line", LISTS)
def test_node_lists(line: str) -> None:
    text, count, first, last = (part.strip() for part in line.split(" | "))
    hosts = hosts_of(text)
    assert (len(hosts), hosts[0], hosts[-1]) == (int(count), first, last)


def test_node_lists_with_several_brackets() -> None:
    assert hosts_of("a[1-2]b[3-4]") == ("a1b3", "a1b4", "a2b3", "a2b4")
    assert hosts_of("n[8-11],n[008-010]") == ("n8", "n9", "n10", "n11", "n008", "n009", "n010")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a,,b",
        "a[1",
        "a[]",
        "a[3-1]",
        "a[x]",
        "a b",
        ",a",
        "a[1-999999999]",
        "a[1-9]" + "b[1-99]" * 9,
        "(null)[",
    ],
)
def test_what_is_no_node_list(text: str) -> None:
    with pytest.raises(ValueError, match="is no node list of Slurm"):
        hosts_of(text)


def test_a_task_is_a_rank() -> None:
    task = dict(TASK)
    join_slurm_step(task)
    assert task.items() - TASK.items() == {
        ("RANK", "3"), ("WORLD_SIZE", "4"), ("LOCAL_RANK", "1"), ("LOCAL_WORLD_SIZE", "2"), ("MASTER_ADDR", "gpu07"),
        ("MASTER_PORT", "20019"),
    }  # fmt: skip
    one_node = TASK | {"SLURM_NODEID": "0", "SLURM_STEP_TASKS_PER_NODE": "4", "MASTER_PORT": "29500"}
    join_slurm_step(one_node)
    assert (one_node["MASTER_ADDR"], one_node["MASTER_PORT"], one_node["LOCAL_WORLD_SIZE"]) == (
        "127.0.0.1",
        "29500",
        "4",
    )


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"SLURM_NTASKS": "1"},
        TASK | {"SLURM_STEP_NUM_TASKS": "1"},
    ],
)
def test_what_is_left_as_it_is(given: dict[str, str]) -> None:
    environ = dict(given)
    join_slurm_step(environ)
    assert environ == given


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (BATCH, "SLURM_NTASKS is 4, and this process is none of these tasks"),
        ({"SLURM_NTASKS": "4"}, "or unset SLURM_NTASKS to train on this machine alone"),
        (BATCH | {"WORLD_SIZE": "4"}, "SLURM_NTASKS is 4"),
        ({"SLURM_NTASKS": "four"}, "SLURM_NTASKS is 'four', allowed is a whole number"),
        (TASK | {"SLURM_STEP_TASKS_PER_NODE": "4"}, "says nothing of node 1"),
        (TASK | {"SLURM_STEP_NODELIST": "gpu[7"}, "'gpu[7' is no node list"),
    ],
)
def test_what_is_refused(given: dict[str, str], said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        join_slurm_step(dict(given))


def test_the_command_line_refuses_before_it_plans(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SLURM_NTASKS", "2")
    assert cli.main(["train", "gpt-tiny"]) == 2
    assert capsys.readouterr().err.startswith(
        "error: SLURM_NTASKS is 2, and this process is none of these tasks"
    )
