"""What users train on becomes batches by step: each row of an epoch once, the same in every process, at any step."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator
from typing import Any

import psutil
import pytest
import torch
from data_sets import LENGTH, Columns, Rows, StatefulLoader, Stream
from torch import Tensor
from torch.utils.data import DataLoader, DistributedSampler, WeightedRandomSampler

from trainyard.job.run.step.data import Data, DataError, FunctionData
from trainyard.job.run.step.data_source import as_data
from trainyard.job.run.step.data_stream import DataStream, StreamReader
from trainyard.job.run.step.dataset_rows import DatasetRows, collate_columns
from trainyard.job.run.step.repeatable import repeatable
from trainyard.job.run.step.row_order import RowOrder, epoch_order

ROWS = 4


def same(one: Any, other: Any) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def rows_of(indices: Iterable[int | Tensor]) -> dict[str, Tensor]:
    read = [Rows()[int(i)] for i in indices]
    return {f"batch.{name}": torch.stack([row[name] for row in read]) for name in ("x", "y")}


def rows_of_step(step: int) -> dict[str, Tensor]:
    return rows_of([step])


def test_the_order_of_an_epoch_is_a_function_of_seed_and_epoch() -> None:
    order = RowOrder(LENGTH, ROWS, shuffle=True, seed=3)
    assert order.steps_per_epoch == 2
    for epoch in range(3):
        rows = [row for step in (2 * epoch, 2 * epoch + 1) for row in order.rows(step)]
        assert rows == epoch_order(LENGTH, 3, epoch)[:8].tolist()
        assert sorted(epoch_order(LENGTH, 3, epoch).tolist()) == list(range(LENGTH))
    assert order.rows(0) != order.rows(2)
    assert RowOrder(LENGTH, ROWS, True, 4).rows(0) != order.rows(0)
    assert [RowOrder(LENGTH, ROWS, False, 0).rows(step) for step in (0, 1, 2)] == [
        [0, 1, 2, 3],
        [4, 5, 6, 7],
        [0, 1, 2, 3],
    ]


@pytest.mark.parametrize(
    "source", [Rows(), Columns(), [Rows()[i] for i in range(LENGTH)]], ids=["rows", "columns", "list"]
)
def test_a_data_set_is_shuffled_by_the_seed(source: Any) -> None:
    data = pickle.loads(pickle.dumps(as_data(source, ROWS, seed=5)))
    for step in (3, 0, 1):
        order = epoch_order(LENGTH, 5, step // 2)[ROWS * (step % 2) :][:ROWS]
        assert same(data.batch(step), rows_of(order))


def test_a_loader_says_whether_it_shuffles_and_by_which_seed() -> None:
    in_order = as_data(DataLoader(Rows(), ROWS, drop_last=True), ROWS, seed=5)
    assert same(in_order.batch(3), rows_of(range(4, 8)))
    shuffled = as_data(DataLoader(Rows(), ROWS, shuffle=True, drop_last=True), ROWS, seed=5)
    assert same(shuffled.batch(0), rows_of(epoch_order(LENGTH, 5, 0)[:ROWS]))
    seeded = torch.Generator().manual_seed(8)
    own = as_data(DataLoader(Rows(), ROWS, True, generator=seeded, drop_last=True), ROWS, seed=5)
    assert same(own.batch(0), rows_of(epoch_order(LENGTH, 8, 0)[:ROWS]))
    columns: Any = Columns()
    assert same(as_data(DataLoader(columns, ROWS, drop_last=True), ROWS).batch(0), rows_of(range(4)))


def sums(rows: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """A row of a batch depends on its other rows."""
    x = torch.stack([row["x"] for row in rows])
    return {"x": x - x.mean(0) + torch.rand(1)}


def test_random_rows_are_the_same_whoever_reads_them() -> None:
    data = as_data(DataLoader(Rows(noise=True), ROWS, drop_last=True), ROWS)
    assert isinstance(data, DatasetRows)
    state = torch.get_rng_state()
    whole, later = data.batch(0), data.batch(2)
    assert torch.equal(torch.get_rng_state(), state)
    assert not torch.equal(whole["batch.x"], later["batch.x"])  # the same rows, in another epoch
    added = whole["batch.x"] - rows_of(range(4))["batch.x"]
    assert len(added[:, 0].unique()) == ROWS
    later_added = data.batch(1)["batch.x"] - rows_of(range(4, 8))["batch.x"]
    assert not (added[:, 0] == later_added[:, 0]).any()  # rows at the same place of another step
    assert same(data.some_rows(0, [3, 1]), {name: value[[3, 1]] for name, value in whole.items()})


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_process_reads_its_rows_only_unless_rows_are_put_together_by_a_function(num_workers: int) -> None:
    loader = DataLoader(Rows(noise=True), ROWS, drop_last=True, num_workers=num_workers)
    data = as_data(loader, ROWS)
    assert isinstance(data, DatasetRows)
    batches = data.batches(1, 4, (0, 2))
    read = list(batches)
    assert len(read) == 3
    for step, batch in zip((1, 2, 3), read, strict=True):
        whole = data.batch(step)
        assert torch.equal(batch["batch.x"][[0, 2]], whole["batch.x"][[0, 2]])
        assert not batch["batch.x"][[1, 3]].any()
    if not num_workers:
        loader.dataset.read.clear()  # type: ignore[attr-defined]
        next(data.batches(0, 1, (1, 2)))
        assert loader.dataset.read == [1, 2]  # type: ignore[attr-defined]
    coupled = as_data(DataLoader(Rows(), ROWS, drop_last=True, collate_fn=sums), ROWS)
    assert isinstance(coupled, DatasetRows)
    assert same(next(coupled.batches(1, 2, (0, 2))), coupled.batch(1))


def _children() -> set[int]:
    return {process.pid for process in psutil.Process().children()}


def test_workers_end_when_their_batches_are_no_longer_wanted() -> None:
    loader = DataLoader(Rows(), ROWS, drop_last=True, num_workers=1)
    data = as_data(loader, ROWS)
    assert isinstance(data, DatasetRows)
    batches, before = data.batches(0, 10**6, None), _children()
    next(batches)
    assert len(_children() - before) == 1
    batches.close()
    assert _children() <= before


@pytest.mark.parametrize(
    "source",
    [
        Stream(),
        DataLoader(Stream(), ROWS, drop_last=True),
        DataLoader(
            Rows(),
            ROWS,
            sampler=WeightedRandomSampler([1.0] * LENGTH, 8, generator=torch.Generator().manual_seed(1)),
        ),
        StatefulLoader(ROWS),
    ],
    ids=["rows", "loader", "sampler", "stateful"],
)
def test_a_stream_is_read_anew_up_to_a_step(source: Any) -> None:
    data = repeatable(as_data(source, ROWS, seed=2), 10)
    assert isinstance(data.data, DataStream)
    reader = StreamReader(data.data)
    read = []
    for _ in range(5):
        read.append(reader.next())
        torch.rand(1)  # what the process draws meanwhile changes nothing
    for step in (4, 1, 3):
        assert same(data.batch(step), read[step])
    assert not same(read[0], read[2])  # of the next epoch, which draws other numbers
    if data.data.has_state:
        for step in (1, 2, 3):  # within an epoch, and at the end of one
            first = StreamReader(data.data)
            first.skip(step)
            state, before = first.state(), source.num_read
            assert same(StreamReader(data.data, state).next(), read[step])
            assert source.num_read == before + 1


class BadState(StatefulLoader):
    def state_dict(self) -> Any:
        return {"position": Rows()}


class Once(Stream):
    def __iter__(self) -> Iterator[Any]:
        yield from ()


def test_a_state_that_would_be_run_as_code_and_an_empty_stream_are_refused() -> None:
    reader = StreamReader(DataStream(BadState(ROWS)))
    reader.next()
    with pytest.raises(DataError, match=r"BadState\.state_dict.* cannot be kept in a checkpoint"):
        reader.state()
    with pytest.raises(DataError, match="epoch 0 of the data has no batch"):
        as_data(Once(), ROWS).batch(0)


@pytest.mark.parametrize(
    ("source", "error", "message"),
    [
        (DataLoader(Rows(), 2, drop_last=True), DataError, "batches have 2 rows.* Give batch_size=4"),
        (DataLoader(Rows(), ROWS), DataError, "last batch of an epoch would have 2 rows.* drop_last=True"),
        (Rows(3), DataError, "3 rows, fewer than the 4 rows of a step"),
        (
            DataLoader(Rows(8), ROWS, sampler=DistributedSampler(Rows(8), 2, 0)),
            DataError,
            "DistributedSampler.* shuffle=True",
        ),
        (iter([1]), DataError, "can be read once only"),
        (3, TypeError, r"data is of type int; allowed is a function data\(step\), a Dataset"),
    ],
)
def test_data_that_cannot_be_trained_on_is_refused_with_a_remedy(
    source: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        as_data(source, ROWS)


@pytest.mark.parametrize("values", [["a", "b"], [[1], [1, 2]]], ids=["text", "lengths"])
def test_a_column_of_which_no_tensor_can_be_made_is_refused(values: list[Any]) -> None:
    with pytest.raises(DataError, match=r"column 'words' makes no tensor.*remove_columns"):
        collate_columns([{"words": value} for value in values])


def test_data_and_functions_stay_what_they_are() -> None:
    own: Data = FunctionData(rows_of_step)
    assert as_data(own, ROWS) is own
    assert as_data(rows_of_step, ROWS) == own
