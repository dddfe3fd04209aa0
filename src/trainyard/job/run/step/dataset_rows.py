"""Rows of a data set with an index: a batch is a pure function of the step, and a process may read some rows of it."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, default_collate
from torch.utils.data import Dataset as TorchDataset

from trainyard.job.run.step.data import DataError, by_path
from trainyard.job.run.step.row_order import RowOrder
from trainyard.job.run.step.seeded import keep_random_state, seed_all
from trainyard.program.lengths import Lengths

__all__ = ["DatasetRows", "PaddingCollate", "Workers", "collate_columns"]


@dataclass(frozen=True, eq=False)
class Workers:
    """Processes that read batches ahead, as arguments of PyTorch's ``DataLoader``; each process of a run has its own.

    Attributes
    ----------
    num_workers : 0 reads in the process that trains.
    options : further arguments of ``DataLoader``.
    """

    num_workers: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, loader: DataLoader[Any]) -> Workers:
        """Return the workers that a loader asks for."""
        options = {
            "prefetch_factor": loader.prefetch_factor,
            "timeout": loader.timeout,
            "worker_init_fn": loader.worker_init_fn,
            "multiprocessing_context": loader.multiprocessing_context,
        }
        return cls(loader.num_workers, {n: v for n, v in options.items() if v} if loader.num_workers else {})


def collate_columns(rows: Sequence[Mapping[str, Any]]) -> Any:
    """Put rows of columns together, as Hugging Face ``datasets`` returns rows: lists of numbers become tensors.

    Raises
    ------
    DataError
        If a column holds what no tensor can hold, such as text, or lists of unlike lengths.
    """
    return {name: _column(name, [row[name] for row in rows]) for name in rows[0]}


def _column(name: str, values: list[Any]) -> Tensor:
    try:
        return torch.stack([torch.as_tensor(value) for value in values])
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataError(
            f"column {name!r} makes no tensor: {error}. Remove the column (dataset.remove_columns), turn text into "
            "tokens, and pad lists to one length, or give the model lengths that pad the column"
        ) from error


@dataclass(frozen=True)
class PaddingCollate:
    """Function that puts rows of unlike lengths together: what the model's lengths pad is filled up to the longest row.

    Attributes
    ----------
    collate : puts rows of one length together.
    """

    lengths: Lengths
    collate: Callable[[list[Any]], Any]

    def __call__(self, rows: list[Any]) -> Any:
        """Return a batch."""
        has_entries = all(isinstance(row, Mapping | tuple | list) for row in rows)
        return self.collate(self.lengths.padded_rows(rows) if has_entries else rows)


@dataclass(frozen=True, eq=False)
class DatasetRows:
    """Batches of the rows of a data set that has an index.

    Random numbers of PyTorch, Python and NumPy that a row draws are seeded by seed, epoch and row; the function that puts
    rows together draws those that follow the last row's.

    Attributes
    ----------
    dataset : a map-style ``torch.utils.data.Dataset``, a sequence, or rows by columns of Hugging Face ``datasets``.
    order : the rows of each step.
    collate : puts a list of rows together.
    is_row_wise : whether ``collate`` treats each row by itself, so that each process may read its rows only.
    workers : that read ahead.
    """

    dataset: Any
    order: RowOrder
    collate: Callable[[list[Any]], Any] = default_collate
    is_row_wise: bool = True
    workers: Workers = field(default_factory=Workers)

    def batch(self, step: int) -> dict[str, Tensor]:
        """All rows of a step, by path."""
        return self.some_rows(step, range(self.order.num_rows))

    def some_rows(self, step: int, places: Sequence[int]) -> dict[str, Tensor]:
        """Return some rows of a step by path, [len(places), ...].

        Parameters
        ----------
        places : of the rows in the batch, from 0.
        """
        rows, epoch, seed = self.order.rows(step), self.order.epoch(step), self.order.seed
        with keep_random_state():
            read = []
            for place in places:
                seed_all(seed, epoch, rows[place])
                read.append(self.dataset[rows[place]])
            return by_path(self.collate(read))

    def batches(self, first: int, end: int, places: Sequence[int] | None) -> Generator[dict[str, Tensor]]:
        """Yield the batches of steps in order, which workers read ahead; close the iterator to end them.

        Parameters
        ----------
        places : of the rows that this process needs; all rows are read if ``collate`` needs them. Rows that are not
            read are zeros.
        """
        read = None if places is None or not self.is_row_wise else list(places)
        if self.workers.num_workers == 0:
            for step in range(first, end):
                yield self._padded(_Steps(self, read)[step], read)
            return
        loader = DataLoader(
            _Steps(self, read),
            batch_size=None,
            sampler=range(first, end),
            num_workers=self.workers.num_workers,
            **self.workers.options,
        )
        for batch in loader:
            yield self._padded(batch, read)

    def _padded(self, batch: dict[str, Tensor], read: list[int] | None) -> dict[str, Tensor]:
        """A batch of all rows, with zeros for those that were not read."""
        if read is None:
            return batch
        found = {}
        for path, part in batch.items():
            found[path] = part.new_zeros((self.order.num_rows, *part.shape[1:]))
            found[path][read] = part
        return found


@dataclass(frozen=True, eq=False)
class _Steps(TorchDataset[dict[str, Tensor]]):
    """The batches of a run as a data set: workers of PyTorch's loader read one each."""

    data: DatasetRows
    places: list[int] | None

    def __getitem__(self, step: int) -> dict[str, Tensor]:
        if self.places is None:
            return self.data.batch(step)
        return self.data.some_rows(step, self.places)
