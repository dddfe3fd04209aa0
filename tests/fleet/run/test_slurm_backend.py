"""Trainings as batch jobs of a real Slurm, on virtual nodes of this machine."""

from __future__ import annotations

import random
import re
import subprocess
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from backend_trials import (
    check_disturbed,
    check_losses,
    check_lost_node,
    check_recovery,
    check_shares_change,
    check_sharing,
    check_sharing_is_refused,
    check_workload,
    kill_somebody,
    nodes_of,
    rank_processes,
    trial_training,
    wait_for,
)
from gang_trials import check_gangs, check_gangs_of_a_manager, check_resizing
from guide_commands import follow_guide
from own_scripts import check_ddp_on_nodes
from slurm_here import give_back_node, kill_node, lose_node, running_slurm, why_no_slurm

from trainyard.fleet.errors import FleetError
from trainyard.fleet.run.backend import BackendOptions
from trainyard.fleet.run.job_directory import JobDirectory
from trainyard.fleet.run.slurm import SlurmBackend, _cancel
from trainyard.fleet.run.slurm_nodes import slurm_cluster, slurm_nodes
from trainyard.fleet.workload.job import Grant
from trainyard.fleet.workload.training_job import training_job
from trainyard.hardware.cluster import Cluster


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Nodes of three devices and one, so that a job on all of them has components that differ."""
    if reason := why_no_slurm():
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("slurm")
    with running_slurm(folder, (3, 1)):
        yield folder


@pytest.mark.slow
def test_five_jobs_end_with_the_losses_of_undisturbed_ones(
    cluster: None, tmp_path: Path, undisturbed: dict[int, float]
) -> None:
    check_workload(SlurmBackend(slurm_cluster(), tmp_path), undisturbed)


@pytest.mark.slow
def test_a_job_that_is_killed_goes_on_from_its_checkpoint(
    cluster: None, tmp_path: Path, undisturbed: dict[int, float]
) -> None:
    check_recovery(
        SlurmBackend(slurm_cluster(), tmp_path), lambda: SlurmBackend(slurm_cluster(), tmp_path), undisturbed
    )


@pytest.mark.slow
def test_a_script_of_ones_own_on_two_nodes(cluster: None, tmp_path: Path) -> None:
    check_ddp_on_nodes(SlurmBackend(slurm_cluster(), tmp_path / "jobs"), tmp_path)


@pytest.mark.slow
@pytest.mark.long
def test_daemons_of_nodes_are_killed_and_come_back(
    cluster: Path, tmp_path: Path, undisturbed: dict[int, float]
) -> None:
    backend = SlurmBackend(slurm_cluster(), tmp_path)

    def disturb(chance: random.Random) -> bool:
        kill_node(cluster, chance.randrange(len(backend.cluster.nodes)), 0.5)
        return True

    check_disturbed(backend, undisturbed, disturb, times=10, kills=False)


@pytest.mark.slow
@pytest.mark.long
def test_a_node_is_lost_and_comes_back(cluster: Path, tmp_path: Path, undisturbed: dict[int, float]) -> None:
    backend = SlurmBackend(slurm_cluster(), tmp_path)
    check_lost_node(backend, undisturbed, lambda node: lose_node(cluster, node), give_back_node)


@pytest.mark.slow
@pytest.mark.long
def test_a_job_that_slurm_requeues_goes_on_from_its_checkpoint(
    cluster: None, tmp_path: Path, undisturbed: dict[int, float]
) -> None:
    """It would be put off for two minutes, with its devices; the job has nodes that differ, and so components."""
    backend = SlurmBackend(slurm_cluster(), tmp_path)
    directory = backend.directory("a")
    backend.start(training_job("a", 0.0, 4, trial_training(400)), Grant((0, 1, 2, 3)))
    wait_for(lambda: directory.saved_steps() >= 8)
    number = _number(directory)
    before = set(rank_processes(directory))
    _scontrol("requeue", number)
    wait_for(lambda: not before & set(rank_processes(directory)))
    saved, requeued_s = directory.saved_steps(), time.monotonic()

    def goes_on() -> bool:
        """As a driver looks at it."""
        assert backend.progress("a").failure is None
        return directory.saved_steps() > saved

    wait_for(goes_on)
    assert time.monotonic() - requeued_s < 90.0  # what Slurm puts it off for is 120 s
    assert len(rank_processes(directory)) == 4
    assert backend.progress("a").failure is None
    backend.close()
    assert backend.progress("a").failure is None
    assert not rank_processes(directory)
    check_losses(directory, undisturbed, 8)
    steps = [line.split(",")[0] for line in (directory.logs / "metrics.jsonl").read_text().splitlines()]
    assert steps.count(steps[0]) == 1  # it did not begin again


@pytest.mark.slow
def test_a_job_that_slurm_has_not_started_leaves_at_once(cluster: None, tmp_path: Path) -> None:
    blocker, waiting = (
        SlurmBackend(slurm_cluster(), tmp_path / "a"),
        SlurmBackend(slurm_cluster(), tmp_path / "b"),
    )
    blocker.start(training_job("first", 0.0, 1, trial_training(400)), Grant((3,)))
    waiting.start(training_job("second", 0.0, 1, trial_training(8)), Grant((3,)))
    assert not waiting.is_over("second")
    waiting.stop(["second"])
    assert waiting.is_over("second")
    assert waiting.progress("second").steps == 0
    blocker.close()


@pytest.mark.slow
def test_jobs_that_have_ended_meanwhile_are_none_to_cancel(cluster: None, tmp_path: Path) -> None:
    """They were in the queue when it was looked at; a number that is none of a job is a mistake."""
    backend = SlurmBackend(slurm_cluster(), tmp_path)
    backend.start(training_job("a", 0.0, 1, trial_training(4)), Grant((0,)))
    seen = backend._batch("a").numbers
    assert seen
    wait_for(lambda: backend.is_over("a"))
    for options in (), ("--state=PENDING",):
        _cancel(seen, *options)
    with pytest.raises(FleetError, match="Invalid job id nonsense"):
        _cancel([*seen, "nonsense"])


@pytest.mark.slow
@pytest.mark.long
def test_a_job_grows_and_shrinks(cluster: Path, tmp_path: Path, undisturbed: dict[int, float]) -> None:
    check_resizing(SlurmBackend(slurm_cluster(), tmp_path), undisturbed)


@pytest.mark.slow
@pytest.mark.long
def test_gangs_have_all_their_devices_or_none(
    cluster: Path, tmp_path: Path, undisturbed: dict[int, float]
) -> None:
    check_gangs(SlurmBackend(slurm_cluster(), tmp_path), undisturbed)


@pytest.mark.long
@pytest.mark.slow
def test_gangs_in_the_queue_have_all_their_devices_or_none(
    cluster: Path, tmp_path: Path, undisturbed: dict[int, float]
) -> None:
    check_gangs_of_a_manager(SlurmBackend(slurm_cluster(), tmp_path), undisturbed, _free_gpus)


@pytest.mark.slow
@pytest.mark.long
def test_jobs_are_killed_ten_times(cluster: Path, tmp_path: Path, undisturbed: dict[int, float]) -> None:
    backend = SlurmBackend(slurm_cluster(), tmp_path)
    check_disturbed(backend, undisturbed, partial(kill_somebody, backend.folder), times=10)


@pytest.mark.slow
@pytest.mark.long
def test_two_jobs_share_a_device(cluster: None, tmp_path: Path, undisturbed: dict[int, float]) -> None:
    check_sharing(SlurmBackend(slurm_cluster(), tmp_path, BackendOptions(shares=True)), undisturbed)


@pytest.mark.slow
@pytest.mark.long
def test_a_share_changes_while_its_job_runs(
    cluster: None, tmp_path: Path, undisturbed: dict[int, float]
) -> None:
    check_shares_change(SlurmBackend(nodes_of(1), tmp_path, BackendOptions(shares=True)), undisturbed)


@pytest.mark.slow
@pytest.mark.long
def test_the_command_of_the_guide(cluster: None, tmp_path: Path) -> None:
    assert "off by" in follow_guide("slurm", "1x3xlocal+1x1xlocal", tmp_path)


@pytest.mark.slow
def test_nodes_and_limits(cluster: None, tmp_path: Path) -> None:
    cluster = slurm_cluster()
    assert [(host.device_type, host.num_devices, host.cpus) for host in cluster.nodes] == [
        ("local", 3, 8.0),
        ("local", 1, 8.0),
    ]
    assert slurm_nodes({"local": "H100"})[0].host.device_type == "H100"
    assert [node.slots for node in slurm_nodes()] == [2, 2]
    with pytest.raises(FleetError, match="2 devices on node 1, Slurm has 1 there"):
        SlurmBackend(Cluster.uniform(2, 2, "local"), tmp_path)
    check_sharing_is_refused(SlurmBackend(cluster, tmp_path))


@pytest.mark.slow
def test_nodes_of_a_partition(cluster: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SBATCH_PARTITION", "nowhere")
    with pytest.raises(FleetError, match=r"partition 'nowhere'; set SBATCH_PARTITION .* \(there are: main\)"):
        slurm_nodes()


def _number(directory: JobDirectory) -> str:
    listing = subprocess.run(
        ["squeue", "-h", "-o", "%i %k"], capture_output=True, text=True, check=True
    ).stdout
    return next(line for line in listing.splitlines() if str(directory.path) in line).split("+")[0]


def _free_gpus() -> int:
    """Devices of the cluster of these tests that no job has."""
    command = ["sinfo", "--noheader", "--Node", "--Format=GresUsed:80"]
    used = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return 4 - sum(map(int, re.findall(r"gpu:local:(\d+)", used)))


def _scontrol(*command: str) -> None:
    subprocess.run(["scontrol", *command], check=True, capture_output=True)
