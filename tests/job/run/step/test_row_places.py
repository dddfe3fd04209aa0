"""A rank reads the rows of a batch that its part of the plan computes with, and no others."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import plans
import pytest
import torch
import torch.distributed as dist
from made_plan import made_plan
from torch import nn
from torch.testing._internal.distributed.fake_pg import FakeStore

from trainyard.job.lower.lower import lower
from trainyard.job.run.step.executor import Executor
from trainyard.job.run.step.initial import initial_values
from trainyard.job.run.step.row_places import row_places
from trainyard.job.schedules import make_schedule
from trainyard.job.task import Task
from trainyard.program.addresses import address
from trainyard.program.model import Model


@contextmanager
def as_rank(rank: int, num_ranks: int) -> Iterator[None]:
    """Be a rank of processes that are not there."""
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=num_ranks)
    try:
        yield
    finally:
        dist.destroy_process_group()


def places_of(plan: Any, program: Any, model: Model) -> list[tuple[int, ...]]:
    """Row places of all ranks."""
    lowered, found = lower(program, plan), []
    for rank in range(plan.num_ranks):
        with as_rank(rank, plan.num_ranks):
            executor = Executor(lowered, rank, initial_values(model, 0), torch.device("cpu"))
            found.append(row_places(executor))
    return found


def layers() -> Model:
    """Three layers, of which the last stage needs the targets, too."""
    module = nn.Sequential(*(nn.Linear(4, 4) for _ in range(3)))
    example = {"x": torch.zeros(8, 4), "y": torch.zeros(8, 4)}
    return Model("layers", module, lambda m, b: nn.functional.mse_loss(m(b["x"]), b["y"]), example)


ALL, FIRST, SECOND = tuple(range(8)), (0, 1, 4, 5), (2, 3, 6, 7)


@pytest.mark.parametrize(
    ("num_data", "num_stages", "places"),
    [(2, 1, [FIRST, SECOND]), (1, 3, [ALL, (0,), ALL]), (2, 2, [FIRST, SECOND, FIRST, SECOND])],
)
def test_rows_of_two_microbatches(num_data: int, num_stages: int, places: list[tuple[int, ...]]) -> None:
    model = layers()
    program = Task(model).program(4)
    starts = [address(n) for n in program.graph.nodes if n.target is torch.ops.aten.addmm.default][
        1:num_stages
    ]
    schedule = make_schedule("one_f_one_b", num_stages, 2)
    plan = made_plan(program, 8, schedule, data=num_data, starts=starts)
    assert sorted(places_of(plan, program, model)) == sorted(places)


def test_sums_over_the_whole_batch_need_their_rows_too() -> None:
    # The loss of a GPT divides by the number of its targets, which is summed before the first microbatch.
    plan = plans.plan(data=2)
    assert places_of(plan, plans.program(2, "float32"), plans.MODEL()) == [
        (0, 1, 2, 3, 4, 5),
        (2, 3, 4, 5, 6, 7),
    ]
