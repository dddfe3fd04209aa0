"""Row order: the rows of a step's batch as a pure function of the step, the seed and the length of the data set."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from trainyard.job.run.step.data import DataError
from trainyard.program.random.dropout_op import stream_key
from trainyard.reading import count_text

__all__ = ["RowOrder", "epoch_order"]


def epoch_order(num_rows: int, seed: int, epoch: int) -> Tensor:
    """Return the shuffled order of a data set's rows in one epoch, the same in every process.

    Parameters
    ----------
    num_rows : of the data set.
    seed : of the order; other seeds give other orders.
    epoch : number of passes over the data before this one.

    Returns
    -------
    int64 [num_rows], a permutation.
    """
    generator = torch.Generator().manual_seed(stream_key(seed, epoch) % 2**63)
    return torch.randperm(num_rows, generator=generator)


_remembered_order = lru_cache(maxsize=2)(epoch_order)


@dataclass(frozen=True)
class RowOrder:
    """Order in which the rows of a data set are trained on.

    Attributes
    ----------
    length : rows of the data set.
    num_rows : rows of a step. The last rows of an epoch's order that fill no step are left out.
    shuffle : whether each epoch has an order of its own; else all have that of the data set.
    seed : of the orders.
    """

    length: int
    num_rows: int
    shuffle: bool
    seed: int

    def __post_init__(self) -> None:
        if self.length < self.num_rows:
            raise DataError(
                f"the data set has {count_text(self.length, 'row')}, fewer than the {self.num_rows} rows of a "
                "step. Give a larger data set, or a model whose example batch has fewer rows"
            )

    @property
    def steps_per_epoch(self) -> int:
        """Steps in which each row is read once at most."""
        return self.length // self.num_rows

    def epoch(self, step: int) -> int:
        """Return the epoch of a step, counted from 0."""
        return step // self.steps_per_epoch

    def rows(self, step: int) -> list[int]:
        """Return the positions in the data set of a step's rows, [num_rows]."""
        first = step % self.steps_per_epoch * self.num_rows
        if not self.shuffle:
            return list(range(first, first + self.num_rows))
        order = _remembered_order(self.length, self.seed, self.epoch(step))
        found: list[int] = order[first : first + self.num_rows].tolist()
        return found
