"""DLRM: a recommendation model with embedding tables and dot-product interaction of features.

References
----------
Naumov et al., "Deep Learning Recommendation Model for Personalization and Recommendation Systems",
arXiv 1906.00091.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainyard.program.model import Model
from trainyard.zoo.common import scattered, scattered_normal, set_init_std

CRITEO_KAGGLE = (
    *(1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194),
    *(27, 14992, 5461306, 10, 5652, 2173, 4, 7046547, 18, 15, 286181, 105, 142572),
)
"""Distinct values of the 26 categorical features of the Criteo Kaggle data."""


@dataclass(frozen=True)
class DLRMConfig:
    """Sizes of a DLRM; the defaults are those for the Criteo Kaggle data.

    Attributes
    ----------
    dense : numerical features.
    tables : rows of each embedding table, one per categorical feature.
    width : of an embedding, and of the bottom MLP's result.
    bottom, top : widths of the hidden layers of the two MLPs.
    """

    dense: int = 13
    tables: tuple[int, ...] = CRITEO_KAGGLE
    width: int = 16
    bottom: tuple[int, ...] = (512, 256, 64)
    top: tuple[int, ...] = (512, 256)


class MLP(nn.Module):
    """Linear layers with ReLU between them, not after the last."""

    def __init__(self, widths: Sequence[int]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(widths))
        for layer in self.layers:
            assert isinstance(layer, nn.Linear)
            set_init_std((2 / (layer.in_features + layer.out_features)) ** 0.5, layer)

    def forward(self, x: Tensor) -> Tensor:
        for i, layer in enumerate(self.layers):
            x = layer(F.relu(x) if i else x)
        return x


class DLRM(nn.Module):
    """Dense features [rows, dense] and indices [rows, tables] to logits [rows]."""

    def __init__(self, config: DLRMConfig) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(rows, config.width) for rows in config.tables)
        for table, rows in zip(self.tables, config.tables, strict=True):
            set_init_std((3 * rows) ** -0.5, table)
        features = len(config.tables) + 1
        self.bottom = MLP((config.dense, *config.bottom, config.width))
        self.top = MLP((config.width + features * (features - 1) // 2, *config.top, 1))

    def forward(self, dense: Tensor, indices: Tensor) -> Tensor:
        x = F.relu(self.bottom(dense))
        vectors = [x, *(table(i) for table, i in zip(self.tables, indices.unbind(1), strict=True))]
        features = torch.stack(vectors, 1)
        products = features @ features.transpose(1, 2)
        # Below the diagonal: every pair of different features once.
        pairs = [products[:, i, :i] for i in range(1, len(vectors))]
        result: Tensor = self.top(torch.cat((x, *pairs), 1)).squeeze(1)
        return result


def loss(module: nn.Module, batch: Any) -> Tensor:
    """Mean cross-entropy (nats) of the clicks."""
    return F.binary_cross_entropy_with_logits(module(batch["dense"], batch["indices"]), batch["clicks"])


def build(name: str, config: DLRMConfig, rows: int) -> Model:
    """A DLRM on ``rows`` samples."""
    indices = [scattered((rows,), size, salt=i) for i, size in enumerate(config.tables)]
    batch = {
        "dense": scattered_normal((rows, config.dense)),
        "indices": torch.stack(indices, 1),
        "clicks": scattered((rows,), 2, salt=99).to(torch.float32),
    }
    return Model(name, DLRM(config), loss, batch)
