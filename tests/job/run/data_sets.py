"""Data sets of two columns, for the tiny model of `one_rank`, and loaders of them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset

LENGTH = 10


class Rows(Dataset[dict[str, Tensor]]):
    """Rows that are functions of their index; with noise, of the global random numbers, too."""

    def __init__(self, length: int = LENGTH, noise: bool = False) -> None:
        self.length, self.noise = length, noise
        self.read: list[int] = []

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        self.read.append(index)
        generator = torch.Generator().manual_seed(index)
        x, y = torch.randn(3, generator=generator), torch.randn(2, generator=generator)
        if self.noise:
            x = x + torch.rand(3) + random.random() + float(np.random.rand())
        return {"x": x, "y": y}


class Columns:
    """As a data set of Hugging Face: rows are dictionaries of numbers and lists, by integers only."""

    column_names = ("x", "y")

    def __init__(self, length: int = LENGTH) -> None:
        self._rows = Rows(length)

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: Any) -> dict[str, Any]:
        assert type(index) is int
        return {name: value.tolist() for name, value in self._rows[index].items()}

    def batch(self, batch_size: int) -> None:
        """The method of this name puts rows into batches; it is not that of `Data`."""
        raise AssertionError


class Stream(IterableDataset[dict[str, Tensor]]):
    """Rows one after the other, moved by random numbers."""

    def __init__(self, length: int = LENGTH) -> None:
        self.rows = Rows(length, noise=True)

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        for index in range(self.rows.length):
            yield self.rows[index]


class StatefulLoader:
    """Batches with a position that is saved, as torchdata's StatefulDataLoader has one."""

    def __init__(self, batch_size: int, length: int = LENGTH) -> None:
        self.rows, self.batch_size = Rows(length, noise=True), batch_size
        self.position = self.begins_at = 0
        self.num_read = 0

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        first, self.begins_at, self.position = self.begins_at, 0, 0
        size = self.batch_size
        for number in range(first, self.rows.length // size):
            self.position = number + 1
            self.num_read += 1
            read = [self.rows[i] for i in range(number * size, (number + 1) * size)]
            yield {name: torch.stack([row[name] for row in read]) for name in read[0]}

    def state_dict(self) -> dict[str, int]:
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.begins_at = state["position"]
