"""Worker: one rank of a training run, from the process group to the last checkpoint."""

from __future__ import annotations

import os
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist

from trainyard.job.lower.lower import lower
from trainyard.job.plan import PlanError
from trainyard.job.run.checkpoint import Checkpointer
from trainyard.job.run.config import RankStep, Work
from trainyard.job.run.data import check_batch, num_tokens
from trainyard.job.run.executor import Executor
from trainyard.job.run.initial import initial_values
from trainyard.program.capture import capture


@dataclass(frozen=True)
class Ready:
    """A rank is about to train: from which step, and what it has to say."""

    rank: int
    step: int
    notes: tuple[str, ...]


Report = Callable[[Ready | RankStep], None]


def train_rank(work: Work, rank: int, device: torch.device, report: Report, resume: bool) -> None:
    """Train as one rank, in a process group that exists already if there are several ranks.

    Parameters
    ----------
    report : called when the rank is ready, and after every step.
    resume : continue from the newest complete checkpoint, if there is one.

    Raises
    ------
    PlanError, DataError, InitialValueError, CheckpointError
        If the plan, data, model or checkpoint do not fit together.
    """
    config, plan = work.config, work.plan
    if plan.dtype == "float16" and device.type == "cpu":
        raise PlanError(
            "float16 needs loss scaling and is slow on a CPU; plan with dtype bfloat16 or float32"
        )
    model = work.build()
    program = capture(model, plan.rows_per_microbatch, getattr(torch, plan.dtype))
    source = work.model if callable(work.model) else None
    values = initial_values(model, config.seed, source)
    executor = Executor(lower(program, plan), rank, values, config.optimizer, device, config.seed)
    first, notes = 0, []
    checkpointer = None
    if config.checkpoint is not None:
        checkpointer = Checkpointer(executor, config.checkpoint, config.keep)
        if resume:
            first, notes = checkpointer.restore()
    if first < config.steps:
        check_batch(work.data.batch(first), program, plan.num_rows)
    report(Ready(rank, first, tuple(notes)))
    for step in range(first, config.steps):
        report(_step(executor, work, rank, step))
        last = step + 1 == config.steps
        due = config.checkpoint_every and (step + 1) % config.checkpoint_every == 0
        if checkpointer is not None and (due or last):
            checkpointer.save(step + 1)
    if checkpointer is not None:
        checkpointer.wait()


def _step(executor: Executor, work: Work, rank: int, step: int) -> RankStep:
    began = time.perf_counter()
    sent = executor.mesh.sent_bytes
    batch = work.data.batch(step)
    result = executor.step(batch, step)
    return RankStep(
        rank,
        step,
        result.losses,
        result.grad_norm,
        time.perf_counter() - began,
        num_tokens(batch),
        peak_memory_bytes(executor.device),
        executor.mesh.sent_bytes - sent,
    )


def peak_memory_bytes(device: torch.device) -> int:
    """Most memory that this process held: allocated on a GPU, else resident."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    # Linux counts in KiB, macOS in bytes.
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def set_up_device(kind: str, local_rank: int, processes_here: int) -> torch.device:
    """The device of a local rank; the cores of the machine are divided among its processes.

    Raises
    ------
    ValueError
        If there are fewer GPUs than processes.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    torch.set_num_threads(max(1, cores // processes_here))
    if kind == "cpu":
        return torch.device("cpu")
    if torch.cuda.device_count() <= local_rank:
        raise ValueError(
            f"the plan needs {processes_here} GPUs on this machine, it has {torch.cuda.device_count()}; "
            "plan for fewer, or train with device cpu"
        )
    torch.cuda.set_device(local_rank)
    return torch.device("cuda", local_rank)


def join_group(device: torch.device, store: dist.Store, rank: int, num_ranks: int) -> None:
    """Make the default process group: nccl between GPUs (gloo for their CPU tensors), else gloo."""
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, store=store, rank=rank, world_size=num_ranks)
