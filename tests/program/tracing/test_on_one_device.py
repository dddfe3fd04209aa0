"""Modules that divide work, compile it or count batches: the step is what one device computes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from test_capture import assert_captured, model_of, run_graph
from torch import Tensor, nn

from trainyard.program.capture import capture


class Ranged(nn.Module):
    """A layer within a range of the profiler."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        with torch.profiler.record_function("layer"):
            return torch.tanh(self.linear(x))


class Compiled(nn.Module):
    """A layer of which a part is compiled in the step."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        activation: Any = torch.compile(torch.tanh, backend="eager")
        return activation(self.linear(x))  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    "module",
    [
        nn.DataParallel(Ranged()),
        nn.Sequential(nn.DataParallel(nn.Linear(6, 6)), nn.Tanh()),
        nn.Sequential(*(Ranged() for _ in range(3))),
        torch.compile(Ranged(), backend="eager"),
        nn.Sequential(Compiled(), torch.compile(nn.Linear(6, 6), backend="eager")),
    ],
    ids=["parallel", "parallel within", "ranges in equal blocks", "compiled", "compiled within"],
)
def test_wrapped_modules_compute_what_is_in_them(module: nn.Module) -> None:
    program = assert_captured(model_of(module))
    names = {name for name, _ in module.named_parameters()}
    assert {p.path for p in program.params} == names, "a checkpoint has the names of the user's module"
    assert not [n for n in program.graph.nodes if "profiler" in str(n.target)]


def test_a_batch_norm_without_momentum_averages_over_all_steps() -> None:
    module = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5, momentum=None), nn.Linear(5, 2))
    model = model_of(module)
    program = capture(model)
    for step in range(3):
        model.batch["x"].copy_(torch.linspace(-1, 1 + step, 24).sin().view(4, 6))
        found = run_graph(program, model)
        model.loss(module, model.batch).backward()
        for name, buffer in module.named_buffers():
            torch.testing.assert_close(found[f"buffer:{name}"], buffer, rtol=1e-5, atol=1e-6)
        for name, parameter in module.named_parameters():
            torch.testing.assert_close(found[f"grad:{name}"], parameter.grad, rtol=1e-4, atol=1e-5)
        module.zero_grad()
    assert int(module[1].num_batches_tracked) == 3


def test_a_synchronised_batch_norm_is_a_batch_norm() -> None:
    """On a device by itself it is one; which ranks share rows is up to the plan."""
    one, other = (
        capture(model_of(nn.Sequential(nn.Linear(6, 5), norm, nn.Linear(5, 2)))).fingerprint
        for norm in (nn.BatchNorm1d(5), nn.SyncBatchNorm(5))
    )
    assert one == other
