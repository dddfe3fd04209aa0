"""Evaluation: the loss and metrics of a model on a held-out set, as plain PyTorch computes them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import count, islice
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset

from trainyard.job.run.step.data import DataError, plain_batch
from trainyard.job.run.step.data_source import (
    Source,
    has_columns,
    is_indexed,
    usual_collate,
    with_usual_collate,
)
from trainyard.job.run.step.seeded import keep_random_state, seed_all
from trainyard.program.batch import batch_rows
from trainyard.program.lengths import Lengths
from trainyard.program.model import Model
from trainyard.reading.arguments import WrongValueError, require_field_types, require_function

__all__ = ["Evaluation", "Sums", "evaluate_batches", "evaluation_batches", "first_evaluation_batch"]

Metrics = Callable[[nn.Module, Any], Mapping[str, Tensor | float]]


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Evaluation on a held-out set, in the evaluation mode of the module.

    The values are means over the rows of the set: of the loss, of the metrics that the model's loss returns, and of
    ``metrics``. Every batch counts by its rows.

    Attributes
    ----------
    data : a Dataset, a DataLoader, a dataset of Hugging Face, a list of rows, or an object that yields batches; or a
        function that returns one of these or an `Evaluation`, and is called in every process. Batches may have any number
        of rows; those of a Dataset have as many as a step.
    every : steps between evaluations; 0 evaluates after the last step only, which is evaluated in any case.
    metrics : called with the module and a batch, as the model's loss is; returns scalars by name.
    from_means : called with all means; returns further values by name, such as the perplexity.
    """

    data: Source
    every: int = 0
    metrics: Metrics | None = None
    from_means: Callable[[Mapping[str, float]], Mapping[str, float]] | None = None

    def __post_init__(self) -> None:
        require_field_types(self)
        for name in ("metrics", "from_means"):
            require_function(name, getattr(self, name), may_be_none=True)
        if self.every < 0:
            raise WrongValueError(f"every cannot be negative, got {self.every}")

    def opened(self) -> Evaluation:
        """Return the evaluation with its data, where a function returns them."""
        if not callable(self.data) or isinstance(self.data, Dataset):
            return self
        made = self.data()
        if isinstance(made, Evaluation):
            return replace(made, every=self.every or made.every).opened()
        return replace(self, data=made)


@dataclass(frozen=True)
class Sums:
    """Sums of values over rows, by name, and the number of rows."""

    values: Mapping[str, float]
    num_rows: int

    def means(self, evaluation: Evaluation) -> dict[str, float]:
        """Return the means, and what the user computes from them.

        Raises
        ------
        DataError
            If there are no rows.
        """
        if not self.num_rows:
            raise DataError(_NO_ROWS)
        found = {name: value / self.num_rows for name, value in self.values.items()}
        return found if evaluation.from_means is None else {**found, **evaluation.from_means(found)}


_NO_ROWS = "the held-out set has no rows; give one that has, or leave the evaluation out"


def first_evaluation_batch(evaluation: Evaluation, num_rows: int, model: Model) -> tuple[int, Any]:
    """Read the first batch of a held-out set, so that a set that cannot be read is refused before a run trains.

    Parameters
    ----------
    num_rows : of a step.

    Raises
    ------
    DataError, CaptureError
        If the set has no rows, or a batch that holds other things than tensors.
    """
    first = next(evaluation_batches(evaluation.data, num_rows, model.lengths), None)
    if first is None:
        raise DataError(_NO_ROWS)
    batch_rows(first[1], model.whole)
    return first


def evaluation_batches(
    data: Source, num_rows: int, lengths: Lengths | None, first: int = 0, every: int = 1
) -> Iterator[tuple[int, Any]]:
    """Return the numbers and the tensors of batches ``first``, ``first + every``, ... of a held-out set, once through it.

    Parameters
    ----------
    num_rows : of the batches of a set of rows; the last may have fewer.
    lengths : of the model. Rows that no function of the user's puts together are filled up to the longest of a batch.

    Raises
    ------
    DataError
        If the data can be read once only.
    """
    numbers = count(first, every)
    return zip(numbers, _own_batches(data, num_rows, lengths, slice(first, None, every)), strict=False)


def _own_batches(data: Source, num_rows: int, lengths: Lengths | None, own: slice) -> Iterable[Any]:
    if isinstance(data, DataLoader):
        loader = with_usual_collate(data, lengths)
        if not is_indexed(loader):
            return islice(loader, own.start, None, own.step)
        dataset: Any = loader.dataset
        sampler = BatchSampler(range(len(dataset)), loader.batch_size or num_rows, loader.drop_last)
        return DataLoader(
            dataset,
            batch_sampler=_of(sampler, own),
            collate_fn=loader.collate_fn,
            num_workers=loader.num_workers,
        )
    collate = usual_collate(data, lengths)
    if hasattr(data, "__getitem__") and hasattr(data, "__len__"):
        sampler = BatchSampler(range(len(data)), num_rows, drop_last=False)
        return DataLoader(data, batch_sampler=_of(sampler, own), collate_fn=collate)
    if isinstance(data, IterableDataset) or has_columns(data):
        return islice(DataLoader(data, num_rows, collate_fn=collate), own.start, None, own.step)
    if not isinstance(data, Iterable) or iter(data) is data:
        raise DataError(
            f"a held-out set of type {type(data).__name__} cannot be read again at each evaluation; give a Dataset, a "
            "DataLoader, or an object that yields batches whenever it is iterated"
        )
    return islice(data, own.start, None, own.step)


def _of(sampler: BatchSampler, own: slice) -> list[list[int]]:
    return list(islice(sampler, own.start, None, own.step))


def evaluate_batches(
    model: Model,
    batches: Iterable[tuple[int, Any]],
    evaluation: Evaluation,
    device: torch.device,
    dtype: str = "float32",
) -> Sums:
    """Compute the loss and metrics of a model on batches, in the evaluation mode of its module.

    Parameters
    ----------
    batches : numbers, by which random numbers are seeded, and tensors.
    model : whose module holds its weights, on ``device``; its mode is restored.
    dtype : precision of the run; in ``bfloat16`` PyTorch's autocast computes.
    """
    sums: dict[str, float] = defaultdict(float)
    num_rows, was_training = 0, model.module.training
    precision = nullcontext() if dtype == "float32" else torch.autocast(device.type, getattr(torch, dtype))
    model.module.eval()
    try:
        with torch.no_grad(), keep_random_state(), precision:
            for number, batch in batches:
                seed_all(number)
                here = pytree.tree_map(
                    lambda t: t.to(device) if isinstance(t, Tensor) else t, plain_batch(batch)
                )
                rows = batch_rows(here, model.whole)
                for name, value in _values(model, here, evaluation).items():
                    sums[name] += float(value) * rows
                num_rows += rows
    finally:
        model.module.train(was_training)
    return Sums(dict(sums), num_rows)


def _values(model: Model, batch: Any, evaluation: Evaluation) -> dict[str, Tensor | float]:
    """Loss and metrics of one batch."""
    said = model.loss(model.module, batch)
    loss, beside = said if isinstance(said, tuple) else (said, {})
    own = {} if evaluation.metrics is None else evaluation.metrics(model.module, batch)
    return {"loss": loss, **beside, **own}
