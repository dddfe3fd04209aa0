"""Every parameter that plain PyTorch trains is trained, however the model reaches it; what it leaves aside is said."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any
from unittest.mock import patch

import pytest
import torch
from test_capture import assert_captured, model_of
from torch import Tensor, nn

from trainyard.job.planning import plan
from trainyard.program import capture as capturing
from trainyard.program.capture import CaptureError, capture


class Holding(nn.Module):
    """Parameters in lists and dictionaries, of which some are used."""

    def __init__(self, used: Callable[[Any], Iterable[Tensor]]) -> None:
        super().__init__()
        self.used = used
        self.w = nn.ParameterList([nn.Parameter(torch.eye(6)) for _ in range(3)])
        self.d = nn.ParameterDict({key: nn.Parameter(torch.eye(6)) for key in "ab"})
        self.plain = [{"w": list(self.w)}]
        self.fixed = tuple(self.d.values())

    def forward(self, x: Tensor) -> Tensor:
        for weight in self.used(self):
            x = x + torch.tanh(x @ weight)
        return x


@pytest.mark.parametrize(
    "used",
    [
        lambda m: m.w[1:],
        lambda m: m.w[::-1],
        lambda m: nn.ParameterList(list(m.w)),
        lambda m: nn.ParameterList().extend(m.w[:2]),
        lambda m: m.d.copy().values(),
        lambda m: (m.d | nn.ParameterDict({"c": m.w[0]})).values(),
        lambda m: copy.copy(m.w),
        lambda m: m.plain[0]["w"],
        lambda m: [p for p in m.w if isinstance(p, nn.Parameter)],
        lambda m: [nn.Parameter(m.w[0]), m.w[1].detach(), m.w[2]],  # of which plain PyTorch trains the last
    ],
)
def test_parameters_have_their_gradients_whatever_they_are_reached_by(used: Any) -> None:
    program = assert_captured(model_of(Holding(used)))
    trained = {o.path for o in program.outputs if o.kind == "grad"}
    assert trained
    assert set(program.unused) == {p.path for p in program.params} - trained


@pytest.mark.parametrize("num_blocks", [1, 4])
def test_other_references_to_parameters_are_refused_by_their_names(num_blocks: int) -> None:
    module = nn.Sequential(*(Holding(lambda m: m.fixed) for _ in range(num_blocks)))
    with pytest.raises(CaptureError, match=r"its parameter 0\.d\.a, 0\.d\.b.* not by the module's attribute"):
        capture(model_of(module))


def test_a_step_that_loses_a_gradient_is_refused() -> None:
    def without_weights(outputs: Any, inputs: Any, grads: Any) -> Any:
        found = torch.autograd.grad(outputs, inputs, grads, allow_unused=True)
        return [None if g is not None and g.dim() == 2 else g for g in found]

    with (
        patch.object(capturing, "gradients", without_weights),
        pytest.raises(
            CaptureError, match=r"its parameter 0\.weight, 1\.weight has a gradient in plain PyTorch"
        ),
    ):
        capture(model_of(nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6))))


class NoGradient(torch.autograd.Function):
    """Reaches its second argument, and gives it no gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        return x * weight

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad, None


def test_what_the_loss_does_not_train_is_said_once_with_the_plan() -> None:
    class Partly(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused, self.scale = nn.Linear(6, 6), nn.Linear(6, 6), nn.Parameter(torch.ones(6))

        def forward(self, x: Tensor) -> Tensor:
            return NoGradient.apply(self.used(x), self.scale)

    explained = plan(model_of(Partly()), "1x2xA100-80G", "data_parallel").plan.explain()
    assert explained.count("does not use scale, unused.weight, unused.bias: no gradient, no update") == 1
