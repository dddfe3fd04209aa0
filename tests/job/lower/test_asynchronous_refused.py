"""What does not go together with updates of stages at different moments is refused before anything runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from asynchronous import REPLICATED, WIDTH, plan_of
from torch import Tensor, nn

from trainyard.job.lower.lower import lower
from trainyard.job.optimizer import OptimizerConfig
from trainyard.job.plan import Mesh, Plan, PlanError, State
from trainyard.job.run.config import TrainConfig, WorkerInput
from trainyard.job.run.processes.worker import prepare
from trainyard.job.run.step.data import FunctionData
from trainyard.job.schedules import make_schedule
from trainyard.job.task import Task
from trainyard.program.model import Model

ROWS = 12


class Net(nn.Module):
    """Four layers; the tests change what lies between them."""

    def __init__(self, between: nn.Module | None = None, is_tied: bool = False) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.between = between or nn.Identity()
        if is_tied:
            self.layers[3].weight = self.layers[0].weight

    def forward(self, x: Tensor) -> Tensor:
        for i, layer in enumerate(self.layers):
            x = self.between(torch.tanh(layer(x))) if i == 1 else layer(x)
        return x


def mean(module: nn.Module, batch: Any) -> Tensor:
    return module(batch["x"]).square().mean()


def weighted(module: nn.Module, batch: Any) -> Tensor:
    """Divided by a number of the whole batch, as a loss over tokens that count is."""
    losses = F.mse_loss(module(batch["x"]), batch["x"], reduction="none").mean(1)
    return (losses * batch["counts"]).sum() / batch["counts"].sum()


def planned(
    net: Net,
    loss: Callable[[nn.Module, Any], Tensor] = mean,
    optimizer: OptimizerConfig | None = None,
    replicated: bool = False,
    data: int = 1,
) -> Plan:
    batch = {"x": torch.randn(ROWS, WIDTH), "counts": torch.ones(ROWS)}
    task = Task(Model("net", net, loss, batch), statistics="microbatch")
    schedule = REPLICATED if replicated else make_schedule("pipedream", 3, 6)
    plan = replace(plan_of(task, schedule), statistics=task.statistics_in(6))
    if data > 1:
        stages = tuple(replace(stage, mesh=Mesh.of(data=data), rows=("data",)) for stage in plan.stages)
        plan = replace(plan, stages=stages, state=State(("data",)))
    lower(task.program(2), plan, optimizer)
    return plan


CASES: dict[str, tuple[Callable[[], Plan], str]] = {
    "a number of the whole batch": (lambda: planned(Net(), weighted), r"sums over the whole batch \("),
    "clipping": (
        lambda: planned(Net(), optimizer=OptimizerConfig(clip_norm=1.0)),
        r"that of all stages, so it cannot be cut to 1\. Train without clipping",
    ),
    "data-parallel ranks": (
        lambda: planned(Net(), data=2),
        r"gradients are summed over the ranks along data\. Take one rank there",
    ),
    "a tied parameter": (
        lambda: planned(Net(is_tied=True)),
        r"layers\.0\.weight is used in stages 0 and 2",
    ),
    "statistics that two ranks would write": (
        lambda: planned(Net(nn.BatchNorm1d(WIDTH)), replicated=True),
        r"writes the buffer between\.\w+, is on ranks 1, 2",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_it_is_refused_with_what_to_do(name: str) -> None:
    make, message = CASES[name]
    with pytest.raises(PlanError, match=message) as error:
        make()
    assert str(error.value).startswith("schedule ")
    assert str(error.value).endswith("or take a schedule without updates, such as one_f_one_b")


def test_statistics_of_each_microbatch_are_trained() -> None:
    assert planned(Net(nn.BatchNorm1d(WIDTH))).statistics == "microbatch"


def test_updates_that_are_done_cannot_be_left_out() -> None:
    net = Net()
    batch = {"x": torch.randn(ROWS, WIDTH), "counts": torch.ones(ROWS)}
    work = WorkerInput(
        Model("net", net, mean, batch),
        planned(net),
        FunctionData(lambda step: batch),
        TrainConfig(1, on_nonfinite="skip"),
    )
    with pytest.raises(PlanError, match="cannot be left out; train with --on-nonfinite stop"):
        prepare(work)
