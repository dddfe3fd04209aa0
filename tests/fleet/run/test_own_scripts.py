"""Jobs of one's own lose their devices again and again, and end with what an uninterrupted run ends with."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from own_scripts import (
    LIMIT_S,
    POLICIES,
    check_preempted,
    ddp_weights,
    example,
    run_preempted,
    run_undisturbed,
)

from trainyard.fleet.run.job_directory import JobDirectory
from trainyard.fleet.run.local import LocalBackend
from trainyard.fleet.workload.job import Job
from trainyard.hardware.cluster import Cluster

CLUSTER = Cluster.uniform(1, 2, "local")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(2 * LIMIT_S)]


def trainer_weights(directory: JobDirectory) -> Any:
    from safetensors.torch import load_file

    return load_file(directory.output / "model" / "model.safetensors")


def squares(directory: JobDirectory) -> Any:
    lines = (directory.output / "squares.txt").read_text().splitlines()
    assert lines[-1] == "40 squared is 1600"
    return torch.tensor([int(line.split()[-1]) for line in lines])


def losses(directory: JobDirectory) -> Any:
    found = directory.losses()
    assert len(found) == directory.training().steps
    return torch.tensor([found[step] for step in sorted(found)])


RESULTS: dict[str, Callable[[JobDirectory], Any]] = {
    "ddp": ddp_weights,
    "trainer": trainer_weights,
    "squares": squares,
    "own": losses,
}


def uninterrupted(job: Job) -> Job:
    """The same job; processes of DDP are started by torchrun."""
    if job.name != "ddp" or job.command is None:
        return job
    line = job.command.line.replace(sys.executable, f"{sys.executable} -m torch.distributed.run")
    return replace(job, command=replace(job.command, line=line, processes="node"))


@pytest.mark.parametrize(
    ("name", "policy"),
    [
        ("ddp", "srtf"),
        ("squares", "tiresias"),
        ("own", "srtf"),
        pytest.param("ddp", "tiresias", marks=pytest.mark.long),
        pytest.param("squares", "srtf", marks=pytest.mark.long),
        pytest.param("own", "tiresias", marks=pytest.mark.long),
        ("trainer", "tiresias"),
        pytest.param("trainer", "srtf", marks=pytest.mark.long),
    ],
)
def test_a_preempted_job_ends_as_an_uninterrupted_one(tmp_path: Path, name: str, policy: str) -> None:
    if name == "trainer":
        pytest.importorskip("accelerate", reason="the Trainer of Hugging Face needs accelerate")
    job = example(name)
    alone, backend = LocalBackend(CLUSTER, tmp_path / "alone"), LocalBackend(CLUSTER, tmp_path / "jobs")
    backend.warm_up()
    run_undisturbed(uninterrupted(job), alone)
    check_preempted(run_preempted(job, POLICIES[policy], backend))
    found, expected = (RESULTS[name](each.directory(name)) for each in (backend, alone))
    torch.testing.assert_close(found, expected)
