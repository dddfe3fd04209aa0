"""What is said to Slurm of a job, and read of what its commands say; there is none here."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path

import pytest
from backend_trials import nodes_of

from trainyard.fleet.errors import FleetError
from trainyard.fleet.run.backend import BackendOptions
from trainyard.fleet.run.fault import BackendError
from trainyard.fleet.run.job_directory import JobDirectory
from trainyard.fleet.run.managed_backend import own_part
from trainyard.fleet.run.ranks import Ranks
from trainyard.fleet.run.slurm import Part, SlurmBackend, _Batch, _queue, script, submission
from trainyard.fleet.run.slurm_nodes import SlurmNode, slurm, slurm_nodes
from trainyard.fleet.workload.job import Grant
from trainyard.hardware.cluster import Cluster, Node

MEETING = "meeting-1"
NODES = tuple(
    SlurmNode(f"node{n}", f"10.0.0.{n}", "gpu:a100", Node.named("A100-80G", 4, 32.0, 2.0**36))
    for n in range(3)
)


def part(node: SlurmNode, ranks: Ranks, jobs_per_device: int = 1, **asked: float) -> Part:
    grant = Grant(tuple(range(ranks.world)), **asked)  # type: ignore[arg-type]
    return node, ranks, own_part(node.host, ranks.count, jobs_per_device, grant)


def test_equal_nodes_are_one_component(tmp_path: Path) -> None:
    """Half of each of two nodes: half of their processors and memory, and a step for each."""
    directory = JobDirectory(tmp_path / "a job")
    parts = [part(node, Ranks(2 * n, 2, 4, MEETING, "2x2xA100-80G")) for n, node in enumerate(NODES[:2])]
    command = submission(directory, parts)
    assert ":" not in command
    assert command[-6:] == [
        "--nodes=2",
        "--ntasks-per-node=1",
        "--nodelist=node0,node1",
        "--gres=gpu:a100:2",
        "--cpus-per-task=16",
        "--mem=32768M",
    ]
    steps = [line for line in script(directory, parts).splitlines() if line.startswith("srun")]
    assert len(steps) == 2
    assert "--het-group" not in steps[0]
    assert "--nodelist=node1 --cpus-per-task=16" in steps[1]
    assert f"'{directory.path}' --" in steps[1]
    assert "--first=2 --count=2 --world=4 --cluster=2x2xA100-80G" in steps[1]
    # Processes of a job that Slurm has requeued do not meet where those before it did.
    assert steps[1].endswith(' --meeting="meeting-1-${SLURM_RESTART_COUNT:-0}" &')


def test_nodes_that_differ_are_components(tmp_path: Path) -> None:
    directory = JobDirectory(tmp_path / "a")
    counts, firsts = (4, 1, 4), (0, 4, 5)
    parts = [
        part(node, Ranks(first, count, 9, MEETING, "x"))
        for node, count, first in zip(NODES, counts, firsts, strict=True)
    ]
    command = submission(directory, parts)
    assert command.count(":") == 1
    first, second = command[: command.index(":")], command[command.index(":") :]
    assert {"--nodes=2", "--nodelist=node0,node2", "--gres=gpu:a100:4"} <= set(first)
    assert {"--nodes=1", "--nodelist=node1", "--gres=gpu:a100:1", "--mem=16384M"} <= set(second)
    steps = [line.split() for line in script(directory, parts).splitlines() if line.startswith("srun")]
    assert [next(word for word in step if "het-group" in word) for step in steps] == [
        "--het-group=0",
        "--het-group=1",
        "--het-group=0",
    ]


def test_a_job_has_the_processors_and_the_memory_that_it_asks_for(tmp_path: Path) -> None:
    """On each of two nodes half of it, and its proportional share of what it does not ask for."""
    ranks = [Ranks(2 * n, 2, 4, MEETING, "2x2xA100-80G") for n in range(2)]
    parts = [part(*each, cpus=12.0) for each in zip(NODES[:2], ranks, strict=True)]
    assert submission(JobDirectory(tmp_path / "a"), parts)[-2:] == ["--cpus-per-task=6", "--mem=32768M"]


def test_no_job_asks_for_more_than_a_node_has(tmp_path: Path) -> None:
    """It would wait for ever."""
    alone = part(NODES[0], Ranks(0, 1, 1, MEETING, "1x1xA100-80G"), cpus=40.0, memory_bytes=2.0**40)
    assert submission(JobDirectory(tmp_path / "a"), [alone])[-2:] == ["--cpus-per-task=32", "--mem=65536M"]


def test_a_job_that_shares_asks_for_slots(tmp_path: Path) -> None:
    """Two of the eight slots of a node, with as much of its processors and memory, and the GPUs that the grant names."""
    node = replace(NODES[0], slots=2)
    directory = JobDirectory(tmp_path / "a")
    parts = [part(node, Ranks(0, 2, 2, MEETING, "1x2xA100-80G", "1,3"), jobs_per_device=2)]
    assert submission(directory, parts)[-3:] == ["--gres=slot:2", "--cpus-per-task=8", "--mem=16384M"]
    assert "--devices=1,3" in script(directory, parts)


def test_nodes_at_one_address_share_the_cores_of_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = [replace(node, address="127.0.0.1") for node in NODES]
    cluster = Cluster.uniform(3, 4, "local")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    apart = SlurmBackend(cluster, tmp_path, nodes=NODES)
    assert (apart.threads(0), apart.core_part) == (8, 1.0)
    assert SlurmBackend(Cluster.uniform(3, 4, "A100-80G"), tmp_path, nodes=here).core_part == 1.0
    assert SlurmBackend(cluster, tmp_path, nodes=here).core_part == pytest.approx(0.6 * 2 / 12)
    # What the nodes have beside the cluster's is no place.
    assert SlurmBackend(Cluster.uniform(2, 1, "local"), tmp_path, nodes=here).core_part == 1.0


@pytest.mark.parametrize("slots", [0, 1])
def test_without_slots_for_two_jobs(slots: int, tmp_path: Path) -> None:
    nodes = [replace(node, slots=slots) for node in NODES]
    with pytest.raises(
        FleetError, match=r"Add slot to GresTypes and slot:8 to the node.s Gres in slurm\.conf"
    ):
        SlurmBackend(Cluster.uniform(1, 4, "local"), tmp_path, BackendOptions(shares=True), nodes=nodes)


@pytest.mark.parametrize(
    ("gres", "slots"),
    [
        ("gpu:a100:4(S:0-1),slot:8", [2]),
        ("gpu:4,slot:11", [2]),
        ("gpu:a100:4", [0]),
        ("gpu:a100:2,gpu:v100:2,slot:8", [0, 0]),
    ],
)
def test_slots_of_a_node(
    gres: str, slots: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Slurm's commands say it; which devices a slot is for is only known where they are of one type."""
    node = f"NodeName=a NodeAddr=a State=IDLE CPUTot=8 RealMemory=1 Gres={gres}"
    _commands(tmp_path, monkeypatch, sinfo="a|main*", scontrol=node)
    assert [node.slots for node in slurm_nodes()] == slots


def test_slots_are_none_where_slurm_hides_devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [replace(node, slots=2) for node in NODES]
    _commands(tmp_path, monkeypatch, scontrol="ConstrainCores          = no\nConstrainDevices        = yes")
    with pytest.raises(FleetError, match=r"set ConstrainDevices=no in cgroup.conf"):
        SlurmBackend(Cluster.uniform(1, 4, "local"), tmp_path, BackendOptions(shares=True), nodes=nodes)


def test_without_slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(FleetError, match=r"there is no sinfo here: .* apt-get install slurm-client"):
        SlurmBackend(nodes_of(2, 2), tmp_path)


def test_a_controller_that_is_away_is_no_fault_of_a_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for said, kind in (
        ("Unable to contact slurm controller (connect failure)", BackendError),
        ("no", FleetError),
    ):
        (tmp_path / "sbatch").write_text(f"#!/bin/sh\necho '{said}' >&2\nexit 1\n")
        (tmp_path / "sbatch").chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
        with pytest.raises(FleetError, match=f"^sbatch failed: {re.escape(said)}$") as error:
            slurm("sbatch")
        assert type(error.value) is kind


def test_a_job_is_put_off_when_all_of_it_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the first one component still ends; the second waits for a time, the third for devices, the fourth runs."""
    lines = [
        "1+0|COMPLETING|None|/a",
        "1+1|PENDING|BeginTime|/a",
        "2+0|PENDING|BeginTime|/b",
        "2+1|PENDING|None|/b",
    ]
    lines += ["3|PENDING|Resources|/c", "4|RUNNING|None|/d", "5|COMPLETING|None|/b"]
    _commands(tmp_path, monkeypatch, squeue="\n".join(lines))
    assert _queue() == {
        "/a": _Batch(("1",), ("1",), suspended=True),
        "/b": _Batch(("2",), ("5",), ("2+0", "2+1"), suspended=True),
        "/c": _Batch(("3",), suspended=True),
        "/d": _Batch(("4",)),
    }


def _commands(folder: Path, monkeypatch: pytest.MonkeyPatch, **said: str) -> None:
    """Commands of Slurm that say always the same."""
    for name, text in said.items():
        (folder / name).write_text(f"#!/bin/sh\ncat <<'END'\n{text}\nEND\n")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")
