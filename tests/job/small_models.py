"""Models that show how a plan is searched and cut, and are captured in no time."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from trainyard.program.model import Model


class AddOne(nn.Module):
    """Adds its own 1, by a matrix product that adds nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(32, 32))
        self.bias = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        return x + x @ self.weight + self.bias


def count_layers(layers: int, rows: int = 8) -> Model:
    """A root nn.Sequential of equal layers, whose loss is their number."""
    module = nn.Sequential(*(AddOne() for _ in range(layers)))
    return Model("count-layers", module, lambda m, batch: m(batch["x"]).mean(), {"x": torch.zeros(rows, 32)})


def batch_norm(rows: int = 16) -> Model:
    """Batch normalisation of rows, of which PyTorch wants two at least."""
    module = nn.Sequential(nn.Linear(12, 48), nn.BatchNorm1d(48), nn.ReLU(), nn.Linear(48, 5))
    batch = {"x": torch.zeros(rows, 12), "y": torch.zeros(rows, dtype=torch.int64)}
    return Model("batch-norm", module, lambda m, b: nn.functional.cross_entropy(m(b["x"]), b["y"]), batch)


def wide(rows: int, width: int = 256, layers: int = 4) -> Model:
    """Linear layers with activations between."""
    parts = [part for _ in range(layers) for part in (nn.Linear(width, width), nn.ReLU())]
    batch = {"x": torch.zeros(rows, width)}
    return Model("wide", nn.Sequential(*parts), lambda m, b: m(b["x"]).square().mean(), batch)


def deviation(rows: int) -> Model:
    """Linear layers under a standard deviation over all rows, which no microbatch can compute by itself."""
    layers = wide(rows, width=64)
    return Model("deviation", layers.module, lambda m, b: m(b["x"]).square().mean(1).std(), layers.batch)
