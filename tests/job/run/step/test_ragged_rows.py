"""Rows of unlike lengths are filled up to the longest of their batch, where the user gives no function for it."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from datasets import Dataset as HuggingFaceDataset
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, SequentialSampler, default_collate

from trainyard.job.run.step.data import DataError
from trainyard.job.run.step.data_source import as_data
from trainyard.job.run.step.evaluation import evaluation_batches
from trainyard.program.lengths import Lengths

LENGTHS = Lengths((4, 8), pad={"tokens": 0, "labels": -100})
TOKENS = [[1, 2], [3, 4, 5], [6], [], [7, 8, 9, 1], [2]]
PADDED = [[1, 2, 0], [3, 4, 5], [6, 0, 0], [0, 0, 0]]
"""The first four rows, as long as the second."""
LABELS = [[1, 2, -100], [3, 4, 5], [6, -100, -100], [-100, -100, -100]]


class Stream(IterableDataset[dict[str, Tensor]]):
    """Rows without an index."""

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        return iter(ROWS)


ROWS = [
    {"tokens": torch.tensor(each), "labels": torch.tensor(each), "number": i} for i, each in enumerate(TOKENS)
]
COLUMNS = HuggingFaceDataset.from_dict({"tokens": TOKENS, "labels": TOKENS, "number": range(6)})


def _with_batch_sampler(drop_last: bool = True) -> DataLoader[Any]:
    rows: Any = ROWS
    return DataLoader(rows, batch_sampler=BatchSampler(SequentialSampler(ROWS), 4, drop_last))


@pytest.mark.parametrize(
    "source",
    [
        pytest.param(DataLoader(ROWS, 4, drop_last=True), id="loader"),  # type: ignore[arg-type]
        pytest.param(DataLoader(ROWS, 4, drop_last=True, num_workers=1), id="workers"),  # type: ignore[arg-type]
        pytest.param(DataLoader(COLUMNS, 4, drop_last=True), id="loader of columns"),  # type: ignore[arg-type]
        pytest.param(_with_batch_sampler(), id="loader with a batch sampler"),
        pytest.param(Stream(), id="stream"),
        pytest.param(DataLoader(Stream(), 4, drop_last=True), id="loader of a stream"),
    ],
)
def test_rows_are_as_long_as_the_longest(source: Any) -> None:
    as_data(source, 4, lengths=Lengths((8,), pad={"tokens": 5}))  # of another run on the same source
    data = pickle.loads(pickle.dumps(as_data(source, 4, lengths=LENGTHS)))
    batch = data.batch(0)
    assert batch["batch.tokens"].tolist() == PADDED
    assert batch["batch.labels"].tolist() == LABELS
    assert batch["batch.number"].tolist() == [0, 1, 2, 3]
    assert batch["batch.tokens"].dtype is torch.int64


def test_a_process_that_needs_one_row_pads_it_as_long_as_all() -> None:
    data: Any = as_data(ROWS[:4], 4, lengths=LENGTHS)
    whole, part = data.batch(0)["batch.tokens"], next(data.batches(0, 1, [3]))["batch.tokens"]
    assert part[3].tolist() == whole[3].tolist()


def test_a_loader_of_the_user_is_not_changed() -> None:
    loader = _with_batch_sampler()
    as_data(loader, 4, lengths=LENGTHS)
    assert loader.collate_fn is default_collate


@pytest.mark.parametrize(
    "source", [ROWS, COLUMNS, _with_batch_sampler(False)], ids=["rows", "columns", "batch sampler"]
)
def test_evaluated_rows_are_as_long_as_the_longest(source: Any) -> None:
    (_, first), (_, last) = evaluation_batches(source, 4, LENGTHS)
    assert first["labels"].tolist() == LABELS
    assert last["tokens"].tolist() == [[7, 8, 9, 1], [2, 0, 0, 0]]


def test_entries_of_tuples_are_named_by_their_number() -> None:
    rows: Any = [(torch.ones(2, 1), 4), (torch.ones(2, 3), 5)]
    batch = as_data(DataLoader(rows, 2), 2, lengths=Lengths((4,), pad={0: 2}, dim=2)).batch(0)
    assert batch["batch.0"].tolist() == [[[1, 2, 2]] * 2, [[1, 1, 1]] * 2]
    assert batch["batch.1"].tolist() == [4, 5]


@pytest.mark.parametrize(
    ("row", "path"), [({"tokens": torch.tensor([1, 2])}, "batch.tokens"), (torch.tensor([1, 2]), "batch")]
)
def test_rows_without_an_entry_that_lengths_pad_are_put_together_without_it(row: Any, path: str) -> None:
    batch = as_data([row, row], 2, lengths=LENGTHS).batch(0)
    assert {name: tensor.tolist() for name, tensor in batch.items()} == {path: [[1, 2]] * 2}


def test_a_function_of_the_user_gets_the_rows_as_they_are() -> None:
    def longest_first(rows: list[dict[str, Tensor]]) -> dict[str, Tensor]:
        return {"size": torch.tensor(sorted((row["tokens"].numel() for row in rows), reverse=True))}

    rows: Any = ROWS
    loader = DataLoader(rows, 4, collate_fn=longest_first, drop_last=True)
    assert as_data(loader, 4, lengths=LENGTHS).batch(0)["batch.size"].tolist() == [3, 2, 1, 0]


def test_without_lengths_columns_of_unlike_lengths_are_refused() -> None:
    with pytest.raises(
        DataError, match=r"column 'tokens' makes no tensor.* or give the model lengths that pad the column"
    ):
        as_data(COLUMNS, 4).batch(0)
