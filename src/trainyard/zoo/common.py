"""What several models share: example batches, the language-model loss, marks for initialisation."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def scattered(shape: tuple[int, ...], below: int, salt: int = 0) -> Tensor:
    """Well-spread integers in ``[0, below)`` of a shape, the same on every call.

    A formula and not a generator, so that it also works on the meta device and under ``FakeTensorMode``.
    """
    state = torch.arange(torch.Size(shape).numel()) + 7919 * (salt + 1)
    # Multiply and fold the high bits back, twice: neighbours become unrelated.
    for _ in range(2):
        state = (state * 0x45D9F3B) % 2**32
        state = state ^ (state >> 16)
    return (state % below).view(shape)


def scattered_normal(shape: tuple[int, ...], salt: int = 0) -> Tensor:
    """Real numbers of about zero mean and unit variance, the same on every call; float32."""
    # The sum of uniform numbers is close enough to normal for an example input.
    total = sum(scattered(shape, 2**16, salt + i).to(torch.float32) for i in range(3))
    assert isinstance(total, Tensor)
    return (total / 2**16 - 1.5) * 2.0


def token_batch(rows: int, length: int, vocab: int) -> dict[str, Tensor]:
    """``tokens`` and ``targets`` of shape [rows, length], int64; the targets are the next tokens."""
    text = scattered((rows, length + 1), vocab)
    return {"tokens": text[:, :-1].contiguous(), "targets": text[:, 1:].contiguous()}


def next_token_loss(module: nn.Module, batch: Any) -> Tensor:
    """Mean cross-entropy (nats) of the targets."""
    logits = module(batch["tokens"])
    return F.cross_entropy(logits.flatten(0, 1), batch["targets"].flatten())


def set_init_std(std: float, *modules: nn.Module) -> None:
    """Mark modules whose matrices start with another standard deviation than 0.02."""
    for module in modules:
        module.__dict__["init_std"] = std


def image_batch(rows: int, side: int, classes: int) -> dict[str, Tensor]:
    """``images`` [rows, 3, side, side], float32, and ``classes`` [rows], int64."""
    return {"images": scattered_normal((rows, 3, side, side)), "classes": scattered((rows,), classes, salt=9)}


def image_loss(module: nn.Module, batch: Any) -> Tensor:
    """Mean cross-entropy (nats) of the classes."""
    return F.cross_entropy(module(batch["images"]), batch["classes"])
