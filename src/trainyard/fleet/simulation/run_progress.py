"""Whether a run goes on: how far its jobs are at a moment, beside an earlier one."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from trainyard.fleet.mechanism.allocator import Allocator
from trainyard.fleet.snapshot import Floats, Ints


class RunProgress(NamedTuple):
    """How far jobs are.

    Attributes
    ----------
    num_ended, num_failures : jobs that are done, and how often jobs lost work that they had done.
    rows : of the others, with how often each has started, its devices, and its work left.
    """

    num_ended: int
    num_failures: int
    rows: Ints
    num_starts: Ints
    held: Ints
    left: Floats

    @classmethod
    def of(cls, allocator: Allocator, now_s: float) -> RunProgress:
        table, notes, rows = allocator.table, allocator.notes, allocator.table.active.copy()
        columns = table.num_starts[rows], table.held[rows], table.left_at(rows, now_s)
        return cls(len(notes.jobs), notes.num_failures, rows, *columns)

    def starts_without_work(self, before: RunProgress) -> int:
        """How often jobs have started since; 0 if one came, ended, worked, or is left alone to start."""
        if self.num_failures != before.num_failures or self.is_better(before):
            return 0
        stays = (self.held > 0) & (self.num_starts == before.num_starts)
        return 0 if stays.any() else int((self.num_starts - before.num_starts).sum())

    def is_better(self, before: RunProgress) -> bool:
        """Whether a job came, ended, or has less work left than ever before."""
        same = self.num_ended == before.num_ended and np.array_equal(self.rows, before.rows)
        return not same or bool((self.left < before.left).any())
