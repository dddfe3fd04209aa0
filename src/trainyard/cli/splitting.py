"""The option of all verbs that plan: what may be split into microbatches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["SplittingOptions"]


@dataclass(frozen=True, kw_only=True)
class SplittingOptions:
    """What may be split."""

    statistics: Literal["batch", "microbatch"] = "batch"
    """batch: microbatches are made only where they train the same as the whole batch. microbatch: also where rows depend
    on each other (batch statistics, pairs of rows, places of experts): each microbatch is computed by itself and the loss
    is the mean of theirs, as gradient accumulation has it, which is another training."""
