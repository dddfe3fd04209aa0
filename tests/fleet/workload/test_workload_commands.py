"""Commands in Trainyard's own form of a workload: what is read, written, simulated and refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from trainyard.fleet.errors import FleetError
from trainyard.fleet.policies.queues import fifo
from trainyard.fleet.run.backends import check_runnable
from trainyard.fleet.scheduler import scheduler_of
from trainyard.fleet.simulate_fleet import simulate_fleet
from trainyard.fleet.workload.command import Command
from trainyard.fleet.workload.job import Job, declared_job
from trainyard.fleet.workload.own import read_form, write_jobs
from trainyard.fleet.workload.read import read_workload
from trainyard.fleet.workload.runnable import runnable_of
from trainyard.fleet.workload.training import Training
from trainyard.hardware.cluster import Cluster

CLUSTER = Cluster.uniform(1, 2, "local")


def of_text(tmp_path: Path, text: str, own_files: bool = False) -> Job:
    """Return the only job of a file."""
    path = tmp_path / "jobs.yaml"
    path.write_text(f"jobs:\n- {{name: a, arrival_s: 0, num_devices: 2, {text}}}\n")
    (job,) = read_workload(path, strict=True, own_files=own_files)
    return job


def test_the_least_that_a_command_says(tmp_path: Path) -> None:
    job = of_text(tmp_path, "command: python train.py, length_s: 20")
    assert runnable_of(job) == Command("python train.py", str(tmp_path))
    assert job == declared_job("a", 0.0, 2, 20.0, command=job.command)


def test_all_that_a_command_may_say(tmp_path: Path) -> None:
    told = "folder: sub, processes: node, grace_s: 5, steps: 30, batch_size: 8"
    job = of_text(tmp_path, f"command: ./train.sh, work: 60, speeds: 'local:2=3', {told}")
    assert job.command == Command("./train.sh", str(tmp_path / "sub"), "node", 5.0, 30)
    assert (job.work, job.batch_size) == (60.0, 8)


@pytest.mark.parametrize(
    ("line", "processes"),
    [
        ("torchrun train.py", "node"),
        ("cd x && /opt/bin/torchrun --no-python a", "node"),
        ("accelerate launch train.py", "node"),
        ("python -m torch.distributed.run train.py", "node"),
        ("python train.py --name mytorchrun.py", "device"),
        ("./run.sh", "device"),
    ],
)
def test_launchers_start_all_processes_of_a_node(tmp_path: Path, line: str, processes: str) -> None:
    job = of_text(tmp_path, f"command: {line}, length_s: 20")
    assert job.command is not None
    assert job.command.processes == processes


@pytest.mark.parametrize("name", ["jobs.csv", "jobs.yaml"])
def test_commands_that_are_written_are_read(tmp_path: Path, name: str) -> None:
    plain = of_text(tmp_path, "command: 'echo \"a, b\" | cat', length_s: 20")
    told = "folder: /data, processes: device, grace_s: 5, steps: 30, batch_size: 8, model: mine"
    full = of_text(tmp_path, f"command: torchrun a.py, work: 60, speeds: 'local:2=3', {told}")
    path = tmp_path / name
    jobs = [plain, replace(full, name="b"), declared_job("c", 1.0, 1, 9.0)]
    write_jobs(jobs, path)
    assert list(read_workload(path)) == jobs


def test_a_command_is_simulated_as_it_is_declared(tmp_path: Path) -> None:
    job = of_text(tmp_path, "command: python train.py, length_s: 20, steps: 5")
    assert simulate_fleet([job], CLUSTER, fifo()).finish_s.tolist() == [20.0]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("command: a", "field 'length_s': got '', allowed is either length_s or work and speeds, beside a"),
        ("command: a, length_s: 1, work: 1", "either length_s or work and speeds, beside a command"),
        ("command: '  ', length_s: 1", "field 'command': got '  ', allowed is a line of a shell"),
        ("command: a, length_s: 1, processes: rank", "allowed is device or node"),
        ("command: a, length_s: 1, steps: 0", "field 'steps': got '0'"),
        ("command: a, length_s: 1, grace_s: -1", "field 'grace_s': got"),
        ("command: a, length_s: 1, grace_s: 1e20", "field 'grace_s': got"),
        ("command: a, length_s: 1, seed: 1", "field 'seed': got '1', allowed is nothing beside a command"),
        ("length_s: 1, folder: x", "field 'folder': got 'x', allowed is nothing where no command"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(FleetError, match=said):
        of_text(tmp_path, text)


def test_a_form_without_a_file_says_where_its_command_runs() -> None:
    text = "{name: a, num_devices: 1, length_s: 2, command: pwd, folder: %s}"
    with pytest.raises(FleetError, match="allowed is an absolute path, for a job that comes in no file"):
        read_form(text % "here", Path("the job"))
    job = read_form(text % "/data", Path("the job"))
    assert job.command is not None
    assert job.command.folder == "/data"


def test_a_folder_that_is_not_there_is_refused_before_the_run(tmp_path: Path) -> None:
    job = of_text(tmp_path, "command: pwd, length_s: 2, folder: nowhere")
    with pytest.raises(
        FleetError, match=f"job 'a': there is no folder {tmp_path}/nowhere in which its command"
    ):
        check_runnable([job], CLUSTER, fifo())


def test_a_policy_that_learns_says_what_is_missing(tmp_path: Path) -> None:
    learns = scheduler_of("optimus").policy
    for told in ("", ", steps: 30", ", batch_size: 8"):
        job = of_text(tmp_path, f"command: pwd, length_s: 2{told}")
        with pytest.raises(
            FleetError, match="learns from the progress of jobs; give its command steps and batch_s"
        ):
            check_runnable([job], CLUSTER, learns)
        check_runnable([job], CLUSTER, fifo())
    check_runnable(
        [of_text(tmp_path, "command: pwd, length_s: 2, steps: 30, batch_size: 8")], CLUSTER, learns
    )


def test_a_job_of_a_trace_has_nothing_to_run() -> None:
    with pytest.raises(
        FleetError, match="job 'a' has a length and nothing to run, so it can only be simulated"
    ):
        check_runnable([declared_job("a", 0.0, 1, 2.0)], CLUSTER, fifo())


def test_a_file_of_a_model_does_not_run_where_jobs_are_only_read(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text("raise SystemExit('it ran')\n")
    with pytest.raises(
        FleetError, match=r"field 'model': got 'own.py', allowed is a model of the zoo, where jobs are o"
    ):
        of_text(tmp_path, "model: own.py, batch_size: 8, steps: 20")


OWN = """
import torch
from torch import nn

def model():
    return nn.Linear(3, 1), lambda net, batch: net(batch).square().mean(), torch.ones(8, 3)
"""


def test_a_file_of_a_model_is_run_and_checked(tmp_path: Path) -> None:
    path = tmp_path / "own.py"
    path.write_text(OWN)
    job = of_text(tmp_path, "model: own.py, batch_size: 8, steps: 20", own_files=True)
    assert runnable_of(job) == Training(str(path), 8, 20)
    write_jobs([job], tmp_path / "again.csv")
    assert list(read_workload(tmp_path / "again.csv", own_files=True)) == [job]
    with pytest.raises(
        FleetError, match=f"field 'batch_size': got '4', allowed is 8, the rows of the batch of {path}"
    ):
        of_text(tmp_path, "model: own.py, batch_size: 4, steps: 20", own_files=True)
    with pytest.raises(
        FleetError, match=r"field 'model': got 'gone.py', allowed is a Python file that is there"
    ):
        of_text(tmp_path, "model: gone.py, batch_size: 8, steps: 20", own_files=True)
    path.write_text(OWN + "def optimizer(params):\n    return torch.optim.SGD(params, lr=0.1)\n")
    with pytest.raises(
        FleetError, match=r"field 'learning_rate': got '0.5', allowed is nothing: the optimizer of"
    ):
        of_text(tmp_path, "model: own.py, batch_size: 8, steps: 20, learning_rate: 0.5", own_files=True)
    path.write_text("def model():\n    return 1 / 0\n")
    with pytest.raises(
        FleetError, match=r"with model\(\) and its data; .*own.py, line 2, in model: ZeroDivisionError"
    ):
        of_text(tmp_path, "model: own.py, batch_size: 8, steps: 20", own_files=True)
