"""The processes of a job: what they share on a node, and what each does under the variables that launchers set."""

from __future__ import annotations

import os
import sys
import traceback
from contextlib import suppress
from dataclasses import replace
from functools import partial

import torch

from trainyard.fleet.errors import one_line
from trainyard.fleet.run.fault import is_disk_fault
from trainyard.fleet.run.job_directory import JobDirectory
from trainyard.fleet.run.ranks import Ranks
from trainyard.fleet.workload.training import THIS_MACHINE
from trainyard.hardware import parse_cluster
from trainyard.job.run.config import TrainConfig, WorkerInput
from trainyard.job.run.errors import NonFiniteError
from trainyard.job.run.processes.rank_processes import RankProcesses
from trainyard.job.run.processes.worker import Prepared, prepare
from trainyard.job.run.step.data import DataError
from trainyard.job.run.train import train_prepared
from trainyard.job.task import Task


def prepared_work(directory: JobDirectory, ranks: Ranks) -> tuple[WorkerInput, Prepared | None]:
    """The job of a folder, and what its ranks on one node share if they are forked from this process.

    On GPUs each rank prepares for itself: what has used a GPU cannot be forked.
    """
    # Asked of the driver's library, because the other way to ask uses the GPU.
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    task = directory.training().task()
    work = work_of(directory, ranks, task)
    if work.config.device != "cpu":
        return work, None
    torch.set_num_threads(1)  # the pool that computes with more would be lost in forked processes
    return work, prepare(work, task)


def work_of(directory: JobDirectory, ranks: Ranks, task: Task) -> WorkerInput:
    """The training of a job: from its newest checkpoint to its end, or until it is paused."""
    training, is_local = directory.training(), ranks.cluster.startswith(THIS_MACHINE)
    config = TrainConfig(
        training.steps,
        training.optimizer,
        checkpoint=directory.checkpoints,
        checkpoint_every=training.checkpoint_every,
        resume=True,
        seed=training.seed,
        log=directory.logs,
        device="cuda" if torch.cuda.is_available() and not is_local else "cpu",
        pause=directory.pause,
        num_threads=ranks.threads,
        core_part=ranks.core_part,
        max_checkpoint_bytes=ranks.max_checkpoint_bytes,
    )
    plan = training.plan(parse_cluster(ranks.cluster), task)
    return WorkerInput(training.source, plan, training.data(), config)


def be_rank(
    directory: JobDirectory,
    work: WorkerInput,
    prepared: Prepared | None,
    ranks: Ranks,
    rank: int,
    parent: int,
    processes: RankProcesses,
) -> None:
    """Run one process of a job; an error is kept in the folder."""
    ranks.begin(rank, parent)
    os.environ |= ranks.environment(rank)
    try:
        processes.begin(rank)
        launched = replace(ranks.launched(directory, rank), stepped=partial(processes.stepped, rank))
        train_prepared(work, launched, prepared)
    except Exception as error:
        printed = traceback.format_exc()
        if isinstance(error, NonFiniteError):
            error = NonFiniteError(
                error.said, "Submit the training anew with a lower learning_rate, under another name"
            )
        repeats = isinstance(error, NonFiniteError | DataError)
        directory.fail(one_line(error), repeats=repeats, lacks=is_disk_fault(error))
        with suppress(OSError):  # of a disk that is full
            print(printed, file=sys.stderr, flush=True)
        sys.exit(1)
