"""A loss of all pairs of rows, which cannot be split into microbatches.

trainyard plan examples/exact_contrastive.py --cluster 1x2xT4 --strategies gpipe
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

ROWS = 32


def loss(module: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """Every row against every other: the row's own partner has to be the nearest."""
    left, right = (F.normalize(module(batch[name]), dim=-1) for name in ("left", "right"))
    return F.cross_entropy(left @ right.T / 0.1, torch.arange(len(left)))


def data(step: int) -> dict[str, Tensor]:
    """The batch of a step: two views of each row."""
    drawn = torch.Generator().manual_seed(step)
    rows = torch.randn(ROWS, 16, generator=drawn)
    return {"left": rows, "right": rows + 0.1 * torch.randn(ROWS, 16, generator=drawn)}


def model() -> tuple[nn.Module, object, dict[str, Tensor]]:
    """A small network, its loss and an example batch."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 8)), loss, data(0)
