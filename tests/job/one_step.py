"""One training step under a plan, beside the same step of plain PyTorch on one device."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from trainyard.job.lower.lower import lower
from trainyard.job.plan import Plan
from trainyard.job.run.step.data import by_path
from trainyard.job.run.step.executor import Executor
from trainyard.job.run.step.state import local_part
from trainyard.job.task import Task
from trainyard.program.batch import batch_rows
from trainyard.program.model import Model
from trainyard.program.random.positional import PositionalDraws

SEED = 3


def plain(model: Model) -> tuple[float, dict[str, Tensor]]:
    """The loss and the gradients of one device, on the whole batch."""
    model.module.zero_grad()
    with PositionalDraws(torch.tensor([SEED, 0, 0]), batch_rows(model.batch, model.whole)):
        result = model.loss(model.module, model.batch)
        loss = result[0] if isinstance(result, tuple) else result
        loss.backward()
    found = {n: p.grad for n, p in model.module.named_parameters() if p.grad is not None}
    return loss.item(), {n: g.clone() for n, g in found.items()}


def trained(task: Task, plan: Plan, rank: int = 0) -> tuple[float, dict[str, Tensor]]:
    """The loss and the gradients that a rank has after one step."""
    loss, grads, _ = stepped(task, plan, rank)
    return loss, grads


def stepped(task: Task, plan: Plan, rank: int) -> tuple[float, dict[str, Tensor], Executor]:
    """The same, and the rank itself."""
    module = task.model.module
    held = {**dict(module.named_parameters(remove_duplicate=False)), **dict(module.named_buffers())}
    values = {n: v.detach().clone() for n, v in held.items()}
    lowered = lower(task.program(plan.rows_per_microbatch), plan)
    executor = Executor(lowered, rank, values.__getitem__, torch.device("cpu"), seed=SEED)
    executor.forward_backward(by_path(task.model.batch), 0)
    losses, grads = summed(executor)
    return losses["loss:loss"], grads, executor


def summed(executor: Executor) -> tuple[dict[str, float], dict[str, Tensor]]:
    """The losses and this rank's gradients after the actions of a step, summed over the ranks; without an update."""
    executor.update["gradients"]()
    state = executor.state
    grads = state.local_tensors(dict(zip(state.buckets, state.gradients(state.buckets), strict=True)))
    return executor.wait_losses(), {name: grad.clone() for name, grad in grads.items()}


def own_part(executor: Executor, path: str, whole: Tensor) -> Tensor:
    """A rank's part of a parameter or gradient."""
    return local_part(whole, executor.lowered.params[path].placements, executor.groups)


def check_equal(found: tuple[float, dict[str, Tensor]], wanted: tuple[float, dict[str, Tensor]]) -> None:
    assert found[0] == pytest.approx(wanted[0], rel=1e-5)
    largest = max(float(g.abs().max()) for g in wanted[1].values())
    for name, grad in found[1].items():
        scale = max(float(wanted[1][name].abs().max()), 0.05 * largest)
        # Where terms of about one cancel, what is left of a gradient is rounding.
        assert float((grad - wanted[1][name]).abs().max()) <= 1e-5 * scale + 3e-7, name
