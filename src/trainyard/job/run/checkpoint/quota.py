"""Disk space of a training's checkpoints, known before the first one."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

from trainyard.errors import TrainyardError
from trainyard.job.optimizer import OptimizerConfig

__all__ = ["QuotaError", "check_quota", "checkpoint_bytes"]

_GB = 1e9
_KEPT_BYTES = 4  # numbers are kept in the precision of float32 at least


class QuotaError(TrainyardError, ValueError):
    """Checkpoints would take more than they may; the message says how much both is."""


def checkpoint_bytes(module: nn.Module, optimizer: OptimizerConfig) -> int:
    """Bytes of one checkpoint: parameters, what the optimizer keeps of those that are trained, and buffers."""
    parameters = list(module.parameters())
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    kept = sum(parameter.numel() for parameter in trained)
    return _bytes((*parameters, *module.buffers())) + round(optimizer.state_bytes * kept)


def _bytes(tensors: Iterable[torch.Tensor]) -> int:
    kept = (max(t.element_size(), _KEPT_BYTES if t.is_floating_point() else 0) * t.numel() for t in tensors)
    return sum(kept)


def check_quota(one_bytes: int, keep: int, most_bytes: float) -> None:
    """Check that the checkpoints of a training take no more than they may.

    Parameters
    ----------
    one_bytes : of a checkpoint.
    keep : complete checkpoints that stay; one more is there while it is written.

    Raises
    ------
    QuotaError
        If they take more.
    """
    if (keep + 1) * one_bytes > most_bytes:
        raise QuotaError(
            f"a checkpoint of this model takes {_gb_text(one_bytes)}, and {keep + 1} of them are there at once: more "
            f"than the {_gb_text(most_bytes)} that --max-checkpoint-size allows; allow more, or train a smaller model"
        )


def _gb_text(num_bytes: float) -> str:
    number = num_bytes / _GB
    return f"{number:,.0f} GB" if number >= 100.0 else f"{number:.3g} GB"
