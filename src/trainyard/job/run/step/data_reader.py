"""Data reader: how a process of a run reads its batches one after the other, from some step on."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import Protocol

from torch import Tensor

from trainyard.job.run.step.data import Data, checksum
from trainyard.job.run.step.data_source import plain_data
from trainyard.job.run.step.data_stream import DataStream, StreamReader
from trainyard.job.run.step.dataset_rows import DatasetRows
from trainyard.job.run.step.repeatable import batch_checksums, check_same_batch

__all__ = ["DataReader", "is_stream", "open_reader"]


class DataReader(Protocol):
    """Batches of one step after the other.

    Attributes
    ----------
    note : what the user should know of the data's position; "" for nothing.
    """

    note: str

    def peek(self) -> Mapping[str, Tensor]:
        """Return the whole batch of the first step, before it is read."""

    def next(self) -> Mapping[str, Tensor]:
        """Return the tensors of the next step by path; rows that this process does not need may be zeros."""

    def checksums(self) -> Mapping[str, int]:
        """Return checksums of the whole batch of the last step, by path, for a checkpoint."""

    def state(self) -> str:
        """Return the position after the last step as text; "" if the number of the step says it."""

    def close(self) -> None:
        """End processes that read ahead."""


def is_stream(data: Data) -> bool:
    """Whether data has no index, so that a batch is found by a position or by reading anew."""
    return isinstance(plain_data(data), DataStream)


def open_reader(
    data: Data, places: Sequence[int] | None, first: int, end: int, state: str, trained_on: Mapping[str, int]
) -> DataReader:
    """Return a reader of the steps from ``first`` to ``end``.

    Parameters
    ----------
    places : of the rows in each batch that this process needs; None reads all.
    state : text of a reader's `state` at the end of step ``first - 1``; "" if a checkpoint has none.
    trained_on : checksums of the batch of step ``first - 1``; empty if there was no such step.

    Raises
    ------
    DataError
        If a stream that is read anew has another batch for that step.
    """
    plain = plain_data(data)
    if isinstance(plain, DataStream):
        return _OfStream(plain, first, state, trained_on)
    if isinstance(plain, DatasetRows):
        return _OfSteps(data, first, plain.batches(first, end, places))
    return _OfSteps(data, first, (data.batch(step) for step in range(first, end)))


class _OfSteps:
    """Batches that are a function of the step."""

    note = ""

    def __init__(self, data: Data, first: int, batches: Generator[Mapping[str, Tensor]]) -> None:
        self._data, self._step, self._batches = data, first - 1, batches

    def peek(self) -> Mapping[str, Tensor]:
        return self._data.batch(self._step + 1)

    def next(self) -> Mapping[str, Tensor]:
        self._step += 1
        return next(self._batches)

    def checksums(self) -> Mapping[str, int]:
        return batch_checksums(self._data, self._step)

    def state(self) -> str:
        return ""

    def close(self) -> None:
        self._batches.close()


class _OfStream:
    """Batches of a stream that all processes read whole."""

    def __init__(self, data: DataStream, first: int, state: str, trained_on: Mapping[str, int]) -> None:
        self.note = ""
        self._last: Mapping[str, Tensor] = {}
        self._peeked: Mapping[str, Tensor] | None = None
        known = state if data.has_state else ""
        self._reader = StreamReader(data, known)
        if first and not known:
            seconds = self._reader.skip(first, lambda step, batch: check_same_batch(step, batch, trained_on))
            self.note = f"the data has no index and no saved position: read anew up to step {first}, in {seconds:.1f} s"

    def peek(self) -> Mapping[str, Tensor]:
        self._peeked = self._reader.next()
        return self._peeked

    def next(self) -> Mapping[str, Tensor]:
        self._last = self._reader.next() if self._peeked is None else self._peeked
        self._peeked = None
        return self._last

    def checksums(self) -> Mapping[str, int]:
        return {path: checksum(tensor) for path, tensor in self._last.items()}

    def state(self) -> str:
        return self._reader.state()

    def close(self) -> None:
        self._reader.close()
