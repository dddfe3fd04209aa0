"""Data source: what users train on as batches by step: a function, a Dataset, a DataLoader, or rows by columns."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    default_collate,
)
from torch.utils.data.distributed import DistributedSampler

from trainyard.job.run.step.data import Data, DataError, FunctionData
from trainyard.job.run.step.data_stream import DataStream
from trainyard.job.run.step.dataset_rows import DatasetRows, PaddingCollate, Workers, collate_columns
from trainyard.job.run.step.repeatable import Repeatable
from trainyard.job.run.step.row_order import RowOrder
from trainyard.program.lengths import Lengths
from trainyard.reading import count_text
from trainyard.reading.arguments import WrongTypeError

__all__ = ["LazyData", "Source", "as_data", "plain_data", "usual_collate", "with_usual_collate"]

Source = Any
"""`Data`; a function ``data(step)``; a ``Dataset``, an ``IterableDataset`` or a ``DataLoader`` of PyTorch; a dataset of
Hugging Face ``datasets``; a sequence of rows; or another object that yields batches whenever it is iterated."""

_KNOWN = (
    "a function data(step), a Dataset, an IterableDataset or a DataLoader of PyTorch, a dataset of Hugging Face, a list "
    "of rows, or an object that yields batches whenever it is iterated"
)


@dataclass(frozen=True, eq=False)
class LazyData:
    """Data that each process makes for itself, and that is sent as the function that makes it.

    Attributes
    ----------
    make : returns the data; defined at the top level of a module.
    """

    make: Callable[[], Data]

    @cached_property
    def made(self) -> Data:
        """The data of this process."""
        return self.make()

    def batch(self, step: int) -> Mapping[str, Tensor]:
        """All rows of a step, by path."""
        return self.made.batch(step)

    def __getstate__(self) -> dict[str, Any]:
        return {"make": self.make}


def plain_data(data: Data) -> Data:
    """Return the data itself of what stands for it."""
    if isinstance(data, Repeatable):
        return plain_data(data.data)
    return plain_data(data.made) if isinstance(data, LazyData) else data


def as_data(source: Source, num_rows: int, seed: int = 0, lengths: Lengths | None = None) -> Data:
    """Return batches by step of what a user gives to train on.

    A Dataset is shuffled: the order of an epoch is a function of ``seed`` and of the epoch's number. A DataLoader says by
    itself whether it shuffles; the seed is that of its generator, if it has one.

    Parameters
    ----------
    num_rows : of a step.
    lengths : of the model. Rows that no function of the user's puts together are filled up to the longest of a batch.

    Raises
    ------
    DataError
        If the loader's batches have another number of rows, it divides rows over processes by itself, or its last batch
        of an epoch is shorter.
    WrongTypeError
        If it is none of these.
    """
    if isinstance(source, DataLoader):
        return _of_loader(with_usual_collate(source, lengths), num_rows, seed)
    collate = usual_collate(source, lengths)
    if has_columns(source):
        # Datasets of PyTorch have the method in any case.
        if hasattr(source, "__getitem__") and not isinstance(source, IterableDataset):
            return _shuffled_rows(source, num_rows, seed, collate)
        return DataStream(DataLoader(source, num_rows, collate_fn=collate, drop_last=True), seed)
    if isinstance(source, IterableDataset):
        return DataStream(DataLoader(source, num_rows, collate_fn=collate, drop_last=True), seed)
    if not isinstance(source, Dataset):
        if callable(getattr(source, "batch", None)):
            data: Data = source
            return data
        if callable(source):
            return FunctionData(source)
    if isinstance(source, str | bytes | Mapping):  # whose letters or keys are no rows
        raise WrongTypeError(f"data is of type {type(source).__name__}; allowed is {_KNOWN}")
    if hasattr(source, "__getitem__") and hasattr(source, "__len__"):
        return _shuffled_rows(source, num_rows, seed, collate)
    if hasattr(source, "__iter__"):
        if iter(source) is source:
            raise DataError(
                f"a {type(source).__name__} can be read once only, so a run could not go on with it. Give the object "
                "that it is made of, which can be iterated again"
            )
        return DataStream(source, seed)
    raise WrongTypeError(f"data is of type {type(source).__name__}; allowed is {_KNOWN}")


def has_columns(source: Source) -> bool:
    """Whether a source has rows by columns, as Hugging Face ``datasets`` has."""
    return hasattr(source, "column_names")


def usual_collate(dataset: Any, lengths: Lengths | None) -> Callable[[list[Any]], Any]:
    """Return the function that puts rows of a data set together where the user gives none."""
    collate = collate_columns if has_columns(dataset) else default_collate
    return collate if lengths is None else PaddingCollate(lengths, collate)


def with_usual_collate(loader: DataLoader[Any], lengths: Lengths | None) -> DataLoader[Any]:
    """Return a loader that puts rows together by `usual_collate` if the user gave it no function for that."""
    collate = usual_collate(loader.dataset, lengths)
    if loader.collate_fn is not default_collate or collate is default_collate:
        return loader
    copied = copy.copy(loader)  # the user's own may serve another model
    copied.collate_fn = collate
    return copied


def _shuffled_rows(
    dataset: Any, num_rows: int, seed: int, collate: Callable[[list[Any]], Any]
) -> DatasetRows:
    return DatasetRows(dataset, RowOrder(len(dataset), num_rows, True, seed), collate, _is_row_wise(collate))


def _is_row_wise(collate: Callable[[list[Any]], Any]) -> bool:
    """Return whether rows are put together each by itself, whatever the others are."""
    return collate in (default_collate, collate_columns)


def _of_loader(loader: DataLoader[Any], num_rows: int, seed: int) -> Data:
    if isinstance(loader.sampler, DistributedSampler):
        raise DataError(
            "the loader has a DistributedSampler, which divides rows over processes. Leave the sampler out and say "
            "shuffle=True: the plan divides the rows of each batch"
        )
    if not is_indexed(loader):
        return DataStream(loader, seed)
    batch_rows = loader.batch_size
    assert batch_rows is not None
    if batch_rows != num_rows:
        raise DataError(
            f"the loader's batches have {count_text(batch_rows, 'row')}; the model's example batch, and so a step, has "
            f"{num_rows}. Give batch_size={num_rows}, or an example batch of {count_text(batch_rows, 'row')}: batch_size "
            "counts the rows of all processes together"
        )
    length = len(loader.dataset)  # type: ignore[arg-type]
    if length % num_rows and not loader.drop_last:
        raise DataError(
            f"the data set has {length} rows, so the last batch of an epoch would have "
            f"{count_text(length % num_rows, 'row')} instead of {num_rows}. Give the loader drop_last=True, which leaves "
            "these rows of an epoch out, or pad the data set"
        )
    shuffles = isinstance(loader.sampler, RandomSampler)
    generator = getattr(loader.sampler, "generator", None) or loader.generator
    own_seed = seed if generator is None else generator.initial_seed()
    return DatasetRows(
        loader.dataset,
        RowOrder(length, num_rows, shuffles, own_seed),
        loader.collate_fn,
        _is_row_wise(loader.collate_fn),
        Workers.of(loader),
    )


def is_indexed(loader: DataLoader[Any]) -> bool:
    """Whether a loader reads a data set that has an index, in its order or in random order."""
    sampler = loader.sampler
    in_order = type(sampler).__name__ == SequentialSampler.__name__
    shuffled = (
        type(sampler).__name__ == RandomSampler.__name__
        and isinstance(sampler, RandomSampler)
        and not sampler.replacement
        and sampler.num_samples == len(sampler.data_source)
    )
    iterates_itself = type(loader).__iter__ is not DataLoader.__iter__ and not hasattr(loader, "state_dict")
    return (
        not isinstance(loader.dataset, IterableDataset)
        and hasattr(loader.dataset, "__getitem__")
        and type(loader.batch_sampler).__name__ == BatchSampler.__name__
        and loader.batch_size is not None
        and (in_order or shuffled)
        and not iterates_itself
    )
