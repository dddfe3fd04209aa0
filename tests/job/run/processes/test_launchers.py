"""Processes that a launcher started are ranks, a missing variable is named, and no process trains everything."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from trainyard.cli import main as cli
from trainyard.job.run.processes.launchers import join_launcher

TORCHRUN = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
}  # fmt: skip
HYDRA = {"PMI_RANK": "3", "PMI_SIZE": "4", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}
ONE_MACHINE = {
    "OMPI_COMM_WORLD_LOCAL_RANK": "3",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
    "PMIX_NAMESPACE": "run-1",
}
MEETING = {"MASTER_ADDR": "gpu7", "MASTER_PORT": "29500"}
TASK = {
    "SLURM_STEP_ID": "0", "SLURM_PROCID": "3", "SLURM_LOCALID": "1", "SLURM_NODEID": "1", "SLURM_JOB_ID": "1",
    "SLURM_STEP_NUM_TASKS": "4", "SLURM_STEP_TASKS_PER_NODE": "2(x2)", "SLURM_STEP_NODELIST": "gpu[07,09]",
}  # fmt: skip


def joined(given):
    environ = dict(given)
    join_launcher(environ)
    return environ


@pytest.mark.parametrize("given", [OPEN_MPI, HYDRA])
def test_a_process_of_an_mpi_is_a_rank(given):
    ranks = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
    assert joined(given | MEETING) == given | MEETING | ranks


def test_processes_of_one_machine_meet_where_no_other_run_does():
    first = joined(OPEN_MPI | ONE_MACHINE)
    same = joined(OPEN_MPI | ONE_MACHINE | {"OMPI_COMM_WORLD_RANK": "0"})
    other = joined(OPEN_MPI | ONE_MACHINE | {"PMIX_NAMESPACE": "run-2"})
    assert first["MASTER_ADDR"] == same["MASTER_ADDR"] == "127.0.0.1"
    assert first["MASTER_PORT"] == same["MASTER_PORT"] != other["MASTER_PORT"]
    assert joined(OPEN_MPI | ONE_MACHINE | {"MASTER_PORT": "29501"})["MASTER_PORT"] == "29501"
    local = HYDRA | {"MPI_LOCALRANKID": "3", "MPI_LOCALNRANKS": "4"}
    assert joined(local)["MASTER_PORT"] == joined(local | {"PMI_RANK": "0"})["MASTER_PORT"]


def test_one_launcher_holds_where_two_say_something():
    assert joined(TORCHRUN | OPEN_MPI) == TORCHRUN | OPEN_MPI
    daemon = TASK | {
        "SLURM_PROCID": "0",
        "SLURM_STEP_NUM_TASKS": "2",
    }  # mpirun starts one for each node with srun
    assert joined(OPEN_MPI | MEETING | daemon)["RANK"] == "3"
    assert joined(HYDRA | MEETING | daemon)["RANK"] == "3"
    assert joined({"PMI_RANK": "3", "PMI_SIZE": "4"} | TASK)["MASTER_ADDR"] == "gpu07"  # srun --mpi=pmi2
    assert joined(TASK)["LOCAL_WORLD_SIZE"] == "2"


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"WORLD_SIZE": "1"},
        TORCHRUN,
        TORCHRUN | {"SLURM_NTASKS": "4"},
        OPEN_MPI | {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"},
        HYDRA | {"PMI_RANK": "0", "PMI_SIZE": "1"},
    ],
)
def test_what_is_left_as_it_is(given):
    assert joined(given) == given


def without(given, name):
    return {key: value for key, value in given.items() if key != name}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (without(TORCHRUN, "MASTER_ADDR"), "and MASTER_ADDR is missing, which say where its ranks meet: set MAST"),
        (without(TORCHRUN, "MASTER_PORT"), "and MASTER_PORT is missing"),
        (without(TORCHRUN, "RANK"), "WORLD_SIZE is '2', as launchers set it for each of several processes, and RANK is"),
        (without(TORCHRUN, "WORLD_SIZE"), "and WORLD_SIZE is missing: set WORLD_SIZE, as torchrun does, or unset RANK"),
        (TORCHRUN | {"RANK": "2"}, "RANK is 2, and WORLD_SIZE 2"),
        (TORCHRUN | {"RANK": "first"}, "RANK is 'first', allowed is a whole number"),
        (TORCHRUN | {"MASTER_PORT": "-1"}, "MASTER_PORT is '-1', allowed is a whole number"),
        (OPEN_MPI, "Open MPI started 4 processes on several machines, and MASTER_ADDR and MASTER_PORT are missing"),
        (HYDRA | {"MASTER_ADDR": "gpu7"}, "MPICH or Intel MPI started 4 processes on several machines, and MASTER_PORT"),
        *((without(OPEN_MPI, name), f"{name} is missing: start it with mpirun") for name in OPEN_MPI),
        *((without(HYDRA, name), f"{name} is missing: start it with mpirun") for name in HYDRA),
        (OPEN_MPI | {"OMPI_COMM_WORLD_SIZE": "x"}, "OMPI_COMM_WORLD_SIZE is 'x', allowed is a whole number"),
        (OPEN_MPI | {"OMPI_COMM_WORLD_RANK": "4"}, "OMPI_COMM_WORLD_RANK 4, OMPI_COMM_WORLD_SIZE 4, "),
        (OPEN_MPI | {"OMPI_COMM_WORLD_LOCAL_RANK": "2"}, "such ranks cannot be; start the processes with mpirun"),
        ({"SLURM_NTASKS": "2"}, "SLURM_NTASKS is 2, and this process is none of these tasks"),
    ],
)  # fmt: skip
def test_what_is_not_known_is_refused_by_name(given, said):
    with pytest.raises(ValueError, match=re.escape(said)):
        joined(given)


def test_the_command_line_refuses_before_it_plans(monkeypatch, capsys):
    monkeypatch.setenv("PMI_RANK", "0")
    assert cli.main(["train", "gpt-tiny"]) == 2
    assert capsys.readouterr().err.startswith(
        "error: PMI_RANK says that MPICH or Intel MPI started this process, and PMI"
    )


SCRIPT = """
import sys
sys.path[:0] = {folders!r}
import plans
import trainyard as ty
result = ty.train(plans.MODEL, plans.plan(data=2), plans.DATA_SOURCE, plans.config(2))
print([dict(metrics.losses) for metrics in result.metrics])
"""


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return str(listener.getsockname()[1])


def of_rank(variables, rank):
    """Variables of a launcher, of one of two ranks of this machine."""
    return {
        name: "2" if name.endswith(("SIZE", "RANKS", "TASKS", "NODE")) else str(rank) for name in variables
    }


NAMES = {
    "open_mpi": tuple(OPEN_MPI),
    "hydra": tuple(HYDRA),
    "torchrun": ("RANK", "WORLD_SIZE"),
    "srun": tuple(name for name in TASK if name not in ("SLURM_NODEID", "SLURM_STEP_ID")),
}
SLOW = pytest.mark.slow
# CI has every launcher once, with a script or with the command.
LONG = [pytest.mark.slow, pytest.mark.long]


def started(arguments, variables, folder):
    """Two processes with the variables of a launcher, and what each printed."""
    shared = {**os.environ, "OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
    if "SLURM_PROCID" in variables:
        shared |= {"SLURM_NODEID": "0", "SLURM_STEP_ID": "0"}
    ranks = [
        subprocess.Popen(
            [sys.executable, *arguments],
            env=shared | of_rank(variables, rank),
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    said = [process.communicate(timeout=300) for process in ranks]
    return [process.returncode for process in ranks], said


@pytest.mark.parametrize(
    "launcher",
    [
        "open_mpi",
        pytest.param("torchrun", marks=SLOW),
        *(pytest.param(n, marks=LONG) for n in ("hydra", "srun")),
    ],
)
def test_two_processes_are_the_ranks_of_one_training(launcher, tmp_path):
    import plans

    from trainyard.job.run.train import train

    script = tmp_path / "script.py"
    script.write_text(
        SCRIPT.format(folders=[str(Path(plans.__file__).parent), str(Path(plans.__file__).parents[1])])
    )
    codes, ((first, _), (second, _)) = started([script], NAMES[launcher], tmp_path)
    assert codes == [0, 0]
    here = train(plans.MODEL, plans.plan(data=2), plans.DATA_SOURCE, plans.config(2))
    assert first == f"{[dict(metrics.losses) for metrics in here.metrics]}\n"
    assert second == "[]\n"  # rank 0 alone reports


FILE = """
import torch
from torch import nn
import trainyard as ty

def loss(module, batch):
    return nn.functional.mse_loss(module(batch["x"]), batch["y"])

def data(step):
    x = torch.randn(4, 3, generator=torch.Generator().manual_seed(step))
    return {"x": x, "y": 2.0 * x[:, :2]}

def model():
    torch.manual_seed(0)
    return ty.Model("line", nn.Linear(3, 2), loss, data(0))
"""


@pytest.mark.parametrize(
    "launcher",
    [
        "srun",
        pytest.param("hydra", marks=SLOW),
        *(pytest.param(n, marks=LONG) for n in ("torchrun", "open_mpi")),
    ],
)
def test_the_command_line_plans_once_and_trains_on_all_ranks(launcher, tmp_path):
    (tmp_path / "line.py").write_text(FILE)
    command = [
        "-m",
        "trainyard",
        "train",
        "line.py",
        "--steps",
        "2",
        "--strategies",
        "data_parallel",
    ]
    codes, (first, second) = started(command, NAMES[launcher], tmp_path)
    assert codes == [0, 0], (first, second)
    assert second == ("", "")  # rank 0 alone prints
    (run,) = (tmp_path / "runs").iterdir()
    lines = (run / "log" / "metrics.jsonl").read_text().splitlines()
    assert [len(json.loads(line)["sent_bytes"]) for line in lines] == [2, 2]


ENDS_EARLY = """
from trainyard.job.run.processes.launchers import join_launcher
from trainyard.job.run.processes.rendezvous import broadcast_text, meet

def make():
    raise SystemExit(3)

join_launcher()
meet()
try:
    broadcast_text("plan", make)
except Exception as error:
    print(type(error).__name__, error)
"""


def test_ranks_are_told_when_rank_0_ends_before_they_agree(tmp_path):
    codes, (_, (second, _)) = started(["-c", ENDS_EARLY], NAMES["open_mpi"], tmp_path)
    assert codes == [3, 0]
    assert second.startswith("LauncherError rank 0 ended before it gave the others the plan (")


TRAINER = """
import sys
sys.path.insert(0, {folder!r})
import line
import trainyard as ty
result = ty.Trainer(line.model, line.data, steps=2, strategies="data_parallel").train()
print([len(metrics.sent_bytes) for metrics in result.metrics])
"""


@pytest.mark.slow
def test_a_trainer_plans_for_the_processes_of_the_launcher(tmp_path):
    (tmp_path / "line.py").write_text(FILE)
    codes, said = started(["-c", TRAINER.format(folder=str(tmp_path))], NAMES["hydra"], tmp_path)
    assert codes == [0, 0], said
    assert [printed for printed, _ in said] == ["[2, 2]\n", "[]\n"]
