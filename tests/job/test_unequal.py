"""Stages of two ranks and of one, on two kinds of device; of the first stage's rows one rank has three quarters."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from allocated import most_allocated, over_gloo, profiled
from asynchronous import ROWS, SEED, batch_of, model
from made_plan import made_plan
from torch.func import functional_call

from trainyard.hardware.parse import parse_cluster
from trainyard.job.lower.lower import Lowered, lower
from trainyard.job.lower.verify import verify
from trainyard.job.optimizer import OptimizerConfig
from trainyard.job.plan import Plan, parse_plan
from trainyard.job.run.processes.fork_server import run_ranks
from trainyard.job.run.step.data import by_path
from trainyard.job.run.step.executor import Executor
from trainyard.job.schedule import parse_schedule
from trainyard.job.simulate import simulate_plan
from trainyard.job.task import Task
from trainyard.program.addresses import address
from trainyard.program.random.positional import PositionalDraws

UNEQUAL = parse_schedule(
    """unequal stages=2 microbatches=4
    0: 0F0 0F1 0B0 0F2 0B1 0B2 0U
    1: 0F3 0B3 0U
    2: 1F0 1B0 1F3 1B3 1F1 1B1 1F2 1B2 1U"""
)
WIDTH, STEPS = 256, 2
SGD = OptimizerConfig("sgd", lr=0.1, momentum=0.9)
PLACE = "1x1xA100-80G+1x1xT4+1x1xA100-80G"


def task() -> Task:
    return Task(model(WIDTH))


def plan_of(trained: Task) -> Plan:
    program = trained.program(ROWS // UNEQUAL.num_microbatches)
    products = [n for n in program.graph.nodes if n.target is torch.ops.aten.addmm.default]
    return made_plan(program, ROWS, UNEQUAL, starts=(address(products[2]),))


def lowered_of(trained: Task) -> Lowered:
    plan = plan_of(trained)
    return lower(trained.program(plan.rows_per_microbatch), plan, SGD)


def train(rank: int) -> Any:
    """Losses, and the parameters of a rank; what it allocates at most."""
    trained = task()
    lowered = lowered_of(trained)
    values = {path: value.detach() for path, value in trained.model.module.named_parameters()}
    batches = [by_path(batch_of(step, WIDTH)) for step in range(STEPS)]
    with profiled() as profiler:
        executor = Executor(lowered, rank, values.__getitem__, torch.device("cpu"), SEED)
        losses = [executor.step(batch, step).losses["loss:loss"] for step, batch in enumerate(batches)]
    params = {path: value.numpy().copy() for path, value in executor.params.items()}
    return losses, params, most_allocated(profiler)


def plain() -> tuple[list[float], dict[str, torch.Tensor]]:
    """The whole batch at once, in one process."""
    trained = model(WIDTH)
    params = dict(trained.module.named_parameters())
    optimizer = torch.optim.SGD(params.values(), SGD.lr, SGD.momentum)
    batches = [batch_of(step, WIDTH) for step in range(STEPS)]
    losses = []
    for step in range(STEPS):
        optimizer.zero_grad()
        with PositionalDraws(torch.tensor([SEED, step, 0]), ROWS):
            loss = trained.loss(lambda x: functional_call(trained.module, params, x), batches[step])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, params


def test_unequal_shares_train_as_one_device_does() -> None:
    lowered = lowered_of(task())
    verify(lowered)
    simulation = simulate_plan(lowered, over_gloo(PLACE))
    losses, wanted = plain()
    found = run_ranks(3, train)
    for rank, (own_losses, params, allocated) in enumerate(found):
        assert own_losses == pytest.approx(losses, rel=1e-5)
        assert simulation.tensor_bytes[rank] == pytest.approx(allocated, rel=1e-4)
        for path, value in params.items():
            torch.testing.assert_close(torch.from_numpy(value), wanted[path].detach(), rtol=1e-5, atol=1e-6)
    assert found[0][1].keys() == found[1][1].keys()
    assert found[0][1].keys() | found[2][1].keys() == wanted.keys()


def test_it_is_explained_written_and_timed() -> None:
    trained = task()
    plan = plan_of(trained)
    assert parse_plan(plan.to_text()) == plan
    assert "Same loss as one device." in plan.explain()
    lowered = lowered_of(trained)
    mixed, alike = (simulate_plan(lowered, parse_cluster(place)) for place in (PLACE, "1x3xA100-80G"))
    # Of alike devices one computes three times as long as the other, but for the update.
    assert 2.5 * alike.work_s[1] < alike.work_s[0] < 3 * alike.work_s[1]
    assert mixed.work_s[0] == alike.work_s[0]
    assert mixed.work_s[1] > alike.work_s[1]
