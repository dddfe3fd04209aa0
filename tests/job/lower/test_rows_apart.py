"""What can be split into microbatches, and what is named where it cannot."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from row_ops import WIDTH, batch, by_source
from split_steps import check_splits
from torch import Tensor, nn

from trainyard.job.lower.split import CoupledRowsError, split
from trainyard.program.capture import capture
from trainyard.program.model import Model

Loss = Callable[[nn.Module, Any], Tensor]


def _split(loss: Loss) -> None:
    model = Model("test", nn.Linear(4, 4), loss, {"x": torch.randn(4, 4), "y": torch.tensor([0, 1, 2, 3])})
    split(capture(model), 2)


def _contrast(m: nn.Module, b: Any) -> Tensor:
    own = F.normalize(m(b["x"]), dim=-1)
    return F.cross_entropy(own @ own.T, b["y"])


APART: dict[str, Loss] = {
    "a place in each row": lambda m, b: m(b["x"])[torch.arange(4), b["y"]].mean(),
    "a table looked up": lambda m, b: (m.weight[b["y"]] * m(b["x"])).sum(),
    "the norm of a row": lambda m, b: F.normalize(m(b["x"]), dim=-1).pow(3).mean(),
    "a pool of one element": lambda m, b: F.adaptive_avg_pool1d(m(b["x"])[:, None], 1).square().mean(),
    "an activation": lambda m, b: F.mish(F.leaky_relu(F.hardtanh(m(b["x"])))).mean(),
}
COUPLED: dict[str, tuple[Loss, str]] = {
    "all pairs": (_contrast, "all rows at once are needed from the op mm on"),
    "no rule": (
        lambda m, b: m(b["x"]).take(b["y"]).mean(),
        "nothing says how the rows of the op take",
    ),
}


@pytest.mark.parametrize("name", APART)
def test_rows_are_apart(name: str) -> None:
    _split(APART[name])


USES = by_source()


@pytest.mark.parametrize("name", USES)
def test_microbatches_of_a_function_of_each_row_add_up(name: str) -> None:
    def loss(module: nn.Module, batch: Any) -> Tensor:
        found = USES[name](module, batch)
        # Unlike factors, because the gradient of the norm of what has a fixed norm is nothing but rounding.
        factors = torch.linspace(0.5, 1.5, found.numel() // len(found)) if found.dim() else torch.tensor(1.0)
        return (found.flatten(1) * factors).square().mean() if found.dim() > 1 else (found * factors).mean()

    torch.manual_seed(0)
    check_splits(Model("test", nn.Linear(WIDTH, WIDTH), loss, batch()))


@pytest.mark.parametrize("name", COUPLED)
def test_what_couples_rows_is_named(name: str) -> None:
    loss, why = COUPLED[name]
    with pytest.raises(CoupledRowsError, match=why):
        _split(loss)
