"""Steps of plans on processes: beside that of one device and the bytes that are predicted, and what they allocate."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import torch
from allocated import most_allocated, profiled
from one_step import SEED, check_equal, own_part, plain, stepped

from trainyard.hardware.parse import parse_cluster
from trainyard.job.lower.lower import Lowered, lower
from trainyard.job.lower.verify import verify
from trainyard.job.plan import PIPELINE, Plan, parse_plan
from trainyard.job.run.processes.fork_server import run_ranks
from trainyard.job.run.step.data import by_path
from trainyard.job.run.step.executor import Executor
from trainyard.job.simulate import simulate_plan
from trainyard.job.task import Task
from trainyard.program.model import Model

TaskOf = Callable[[], Task]


def check_steps(num_ranks: int, plans: Sequence[tuple[TaskOf, Plan]]) -> None:
    """Every rank has the loss and its part of the gradients of one device, and sends what is predicted."""
    texts = [(task, plan.to_text()) for task, plan in plans]
    answers = run_ranks(num_ranks, _rank, texts)
    for (task, plan), *of_ranks in zip(plans, *answers, strict=True):
        loss, grads = plain(task().model)
        seen: set[str] = set()
        sent = [0] * plan.pipeline
        for rank, (own_loss, own, wanted, sent_bytes) in enumerate(of_ranks):
            own, wanted = ({n: torch.from_numpy(g) for n, g in each.items()} for each in (own, wanted))
            check_equal((own_loss, own), (loss, wanted))
            seen |= own.keys()
            pipeline = plan.coordinate(rank)[PIPELINE]
            sent[pipeline] = max(sent[pipeline], sent_bytes)
        assert seen == grads.keys()
        lowered = lower(task().program(plan.rows_per_microbatch), plan)
        verify(lowered)
        predicted = simulate_plan(lowered, parse_cluster(f"1x{num_ranks}xA100-80G")).sent_bytes
        # Numbers that all ranks agree on at the end of a step (losses) are not counted by the runtime.
        assert sent == pytest.approx(list(predicted), rel=1e-3, abs=64)


def allocated(rank: int, lowered: Lowered, model: Model, batches: Sequence[Mapping[str, Any]]) -> int:
    """Most bytes that tensors of a rank have while it trains on some batches."""
    values = {path: value.detach() for path, value in model.module.named_parameters()}
    by_paths = [by_path(batch) for batch in batches]
    with profiled() as profiler:
        executor = Executor(lowered, rank, values.__getitem__, torch.device("cpu"), SEED)
        for step, batch in enumerate(by_paths):
            executor.step(batch, step)
    return most_allocated(profiler)


def _rank(rank: int, texts: Sequence[tuple[TaskOf, str]]) -> list[Any]:
    """Loss and gradients of every plan, beside this rank's part of those of one device; bytes that it sends."""
    found = []
    for task, text in texts:
        loss, grads, executor = stepped(task(), parse_plan(text), rank)
        all_of_them = plain(task().model)[1]
        wanted = {path: own_part(executor, path, all_of_them[path]) for path in grads}
        before = executor.groups.sent_bytes
        executor.step(by_path(task().model.batch), 0)
        numbers = [{n: g.numpy() for n, g in each.items()} for each in (grads, wanted)]
        found.append((loss, *numbers, executor.groups.sent_bytes - before))
    return found
