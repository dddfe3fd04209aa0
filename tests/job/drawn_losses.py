"""Small models with losses drawn at random: sums of terms, some of which couple the rows of a batch."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainyard.program.model import Model

ROWS, LENGTH, WIDTH, CLASSES = 8, 6, 8, 5

Term = Callable[[nn.Module, Tensor, dict[str, Tensor]], Tensor]
"""From the module, its scores [ROWS, LENGTH, CLASSES] and the batch to a scalar."""


def _flat(scores: Tensor) -> Tensor:
    return scores.reshape(-1, CLASSES)


def _per_token(scores: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(_flat(scores), labels.reshape(-1), reduction="none").view_as(labels)


def _weights(scores: Tensor) -> Tensor:
    return torch.linspace(0.5, 2.0, CLASSES, dtype=scores.dtype)


SEPARATE: dict[str, Term] = {
    "mean": lambda m, s, b: (s - b["y"]).square().mean(),
    "sum": lambda m, s, b: 0.01 * (s - b["y"]).abs().sum(),
    "token mean": lambda m, s, b: F.cross_entropy(_flat(s), b["labels"].reshape(-1)),
    "summed over the labels": lambda m, s, b: (
        F.cross_entropy(_flat(s), b["labels"].reshape(-1), reduction="sum") / (b["labels"] != -100).sum()
    ),
    "class weights": lambda m, s, b: F.cross_entropy(_flat(s), b["labels"].reshape(-1), _weights(s)),
    "smoothed labels": lambda m, s, b: F.cross_entropy(
        _flat(s), b["labels"].reshape(-1), label_smoothing=0.1
    ),
    "spatial": lambda m, s, b: F.cross_entropy(s.transpose(1, 2), b["labels"]),
    "masked mean": lambda m, s, b: (_per_token(s, b["labels"]) * b["mask"]).sum() / b["mask"].sum(),
    "mean of row means": lambda m, s, b: (
        (_per_token(s, b["labels"]) * b["mask"]).sum(1) / b["mask"].sum(1).clamp(min=1)
    ).mean(),
    "clamped count": lambda m, s, b: (s.tanh() * b["mask"][..., None]).sum() / b["mask"].sum().clamp(min=1),
    "binary": lambda m, s, b: F.binary_cross_entropy_with_logits(s, b["y"].sigmoid()),
    "smooth": lambda m, s, b: F.smooth_l1_loss(s, b["y"]),
    "divergence": lambda m, s, b: F.kl_div(
        s.log_softmax(-1), b["y"].softmax(-1), reduction="batchmean", log_target=False
    ),
    "penalty": lambda m, s, b: 0.1 * sum(p.square().sum() for p in m.parameters()),
    "weighed rows": lambda m, s, b: (
        ((s - b["y"]).square().mean((1, 2)) * b["weight"]).sum() / b["weight"].sum()
    ),
    "standard rows": lambda m, s, b: (
        s.mean((1, 2)) * (b["weight"] - b["weight"].mean()) / b["weight"].std()
    ).sum(),
}
"""Terms that microbatches add up to."""

COUPLED: dict[str, Term] = {
    "contrastive": lambda m, s, b: F.cross_entropy(
        F.normalize(s.mean(1)) @ F.normalize(b["y"].mean(1) + s.mean(1)).T, torch.arange(ROWS)
    ),
    "spread": lambda m, s, b: s.mean((1, 2)).std(),
    "largest": lambda m, s, b: s.mean((1, 2)).max(),
    "product": lambda m, s, b: s.mean() * (s - b["y"]).square().mean(),
    "root": lambda m, s, b: (s - b["y"]).square().mean().sqrt(),
    "own count": lambda m, s, b: (s * s.sigmoid()).sum() / s.sigmoid().sum(),
}
"""Terms that need all rows at once."""


class Net(nn.Module):
    """Tokens to scores, with layers drawn at random."""

    def __init__(self, draw: random.Random) -> None:
        super().__init__()
        self.tokens = nn.Embedding(CLASSES, WIDTH)
        kinds: list[Callable[[], nn.Module]] = [
            lambda: nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH)),
            lambda: nn.LayerNorm(WIDTH),
            lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()),
            lambda: nn.Dropout(0.25),
        ]
        self.layers = nn.ModuleList(draw.choice(kinds)() for _ in range(draw.randint(2, 4)))
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens)
        for layer in self.layers:
            x = x + layer(x)
        scores: Tensor = self.head(x)
        return scores


@dataclass(frozen=True, eq=False)
class Drawn:
    """A model, the names of its loss's terms, and whether they couple rows."""

    model: Model
    terms: tuple[str, ...]
    is_coupled: bool


def drawn(seed: int) -> Drawn:
    """The model of a seed; a third of them couple rows."""
    draw = random.Random(seed)
    names = tuple(draw.sample(list(SEPARATE), draw.randint(1, 3)))
    if draw.random() < 1 / 3:
        names = (*names, draw.choice(list(COUPLED)))
    return with_terms(names, seed)


def with_terms(names: tuple[str, ...], seed: int = 0) -> Drawn:
    """A model whose loss is the sum of some terms."""
    torch.manual_seed(seed)
    module = Net(random.Random(seed))
    terms = {**SEPARATE, **COUPLED}

    def loss(module: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        scores = module(batch["tokens"])
        total: Tensor = sum(terms[name](module, scores, batch) for name in names)  # type: ignore[assignment]
        return total

    return Drawn(Model(f"drawn {seed}", module, loss, _batch(seed)), names, any(n in COUPLED for n in names))


def _batch(seed: int) -> dict[str, Tensor]:
    """Rows with unequal numbers of labels and of tokens that count; the first microbatches may have none."""
    g = torch.Generator().manual_seed(seed)
    kept = torch.randint(0, LENGTH + 1, (ROWS, 1), generator=g)
    kept[-1] = LENGTH
    is_kept = torch.arange(LENGTH) < kept
    labels = torch.randint(0, CLASSES, (ROWS, LENGTH), generator=g)
    return {
        "tokens": torch.randint(0, CLASSES, (ROWS, LENGTH), generator=g),
        "labels": torch.where(is_kept, labels, -100),
        "mask": is_kept.float(),
        "y": torch.randn(ROWS, LENGTH, CLASSES, generator=g),
        "weight": torch.rand(ROWS, generator=g) + 0.1,
    }
