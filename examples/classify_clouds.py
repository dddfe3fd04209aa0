"""Train on a Dataset, and evaluate on a held-out set.

    trainyard train examples/classify_clouds.py --steps 60 --evaluate-every 20

The rows are two noisy clouds of points; each is drawn from its number, so all processes see the same.
"""

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from trainyard import Evaluation, Model

ROWS = 32


class Clouds(Dataset):
    """Points around one of two centres, and which one it is."""

    def __init__(self, length: int, first: int = 0) -> None:
        self.length, self.first = length, first

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        generator = torch.Generator().manual_seed(self.first + index)
        label = torch.tensor(index % 2)
        return {"x": torch.randn(8, generator=generator) + 0.5 * label, "label": label}


def loss(module: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """Cross entropy of the two classes."""
    return nn.functional.cross_entropy(module(batch["x"]), batch["label"])


def accuracy(module: nn.Module, batch: dict[str, Tensor]) -> dict[str, Tensor]:
    """Part of the rows whose class is right."""
    return {"accuracy": (module(batch["x"]).argmax(-1) == batch["label"]).float().mean()}


def model() -> Model:
    """Two layers with dropout, which evaluation leaves out."""
    module = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 2))
    batch = {"x": torch.zeros(ROWS, 8), "label": torch.zeros(ROWS, dtype=torch.int64)}
    return Model("clouds", module, loss, batch)


def loader() -> DataLoader:
    """Rows to train on, shuffled."""
    return DataLoader(Clouds(1000), ROWS, shuffle=True, drop_last=True)


def evaluation() -> Evaluation:
    """Other rows, and a metric beside the loss."""
    return Evaluation(Clouds(200, first=10_000), metrics=accuracy)
