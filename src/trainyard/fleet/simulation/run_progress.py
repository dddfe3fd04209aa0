"""Whether a run goes on: how far its jobs are at a moment, beside an earlier one; runs that never end are refused."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from trainyard.fleet.errors import FleetError
from trainyard.fleet.mechanism.allocator import Allocator
from trainyard.fleet.snapshot import Floats, Ints

# Failures that hit jobs, or come while all wait.
_MANY_LOSSES = 20_000
# Looks in a row at which all jobs only wait; a policy may put them off for long, as to the night.
_MANY_IDLE_LOOKS = 20


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

    def only_waits(self, before: RunProgress) -> bool:
        """Whether the same jobs are there, and none has devices, or had them since."""
        same = self.num_ended == before.num_ended and np.array_equal(self.rows, before.rows)
        return same and not self.held.any() and np.array_equal(self.num_starts, before.num_starts)

    def is_better(self, before: RunProgress) -> bool:
        """Whether a job came, ended, or has less work left than ever before."""
        same = self.num_ended == before.num_ended and np.array_equal(self.rows, before.rows)
        return not same or bool((self.left < before.left).any())


class ProgressCheck:
    """Refuses runs that would go on for ever; all raise a `FleetError`.

    Attributes
    ----------
    look_every : moments at which the policy may be asked, between two looks at whether anything goes on.
    """

    look_every = 1000

    def __init__(self, allocator: Allocator) -> None:
        self._allocator, self._table = allocator, allocator.table
        self._before = self._before_losses = RunProgress.of(allocator, 0.0)
        self._num_losses = self._num_idle_looks = 0

    def look(self, now_s: float, nodes_may_come: bool, jobs_may_come: bool) -> None:
        """Whether jobs do any work: if all only wait, or lose devices before the restart on them is over, none ends.

        Parameters
        ----------
        nodes_may_come : whether nodes may still come, or come back, which may let them work.
        jobs_may_come : whether there are more jobs, at which a policy may decide otherwise.
        """
        before, self._before = self._before, RunProgress.of(self._allocator, now_s)
        is_idle = not (nodes_may_come or jobs_may_come) and self._before.only_waits(before)
        self._num_idle_looks = self._num_idle_looks + 1 if is_idle else 0
        if self._num_idle_looks == _MANY_IDLE_LOOKS:
            self.refuse_to_wait()
        num_starts = self._before.starts_without_work(before)
        if num_starts >= self.look_every // 2 and not nodes_may_come:
            raise FleetError(
                f"{len(before.rows)} jobs were started {num_starts} times in a row and did no work until {now_s:g} s: "
                "their devices are taken away again while they restart. Let a restart take less time (restart_s, "
                "start_s), or leave jobs theirs for longer (round_s, or the policy's quantum)"
            )

    def note_loss(self, now_s: float) -> None:
        """Jobs of which none is further after so many failures than before never end."""
        self._num_losses += 1
        if self._num_losses < _MANY_LOSSES:
            return
        before, self._num_losses = self._before_losses, 0
        self._before_losses = RunProgress.of(self._allocator, now_s)
        if not self._before_losses.is_better(before):
            raise FleetError(
                f"{_MANY_LOSSES:,} failures in a row left no job with less work: {self._allocator.fate.hazards}. Let "
                "them fail less often, or write checkpoints more often"
            )

    def refuse_to_wait(self) -> None:
        """Nothing will happen any more, and jobs wait."""
        waiting = [self._table.job(row) for row in self._table.active.tolist()]
        widest = max(waiting, key=lambda job: job.num_devices)
        raise FleetError(
            f"the policy leaves {len(waiting)} jobs waiting for ever, {waiting[0].name!r} first; a policy must in the "
            f"end run every job that fits, or refuse it. Job {widest.name!r} asks for most devices, "
            f"{widest.num_devices}: a policy that does not resize jobs cannot run it where fewer are of one type"
        )

    def refuse_early(self, now_s: float, ask_again_s: float) -> None:
        """The policy wants to decide again at once."""
        raise FleetError(
            f"the policy asks at {now_s} s to decide again at {ask_again_s} s; give a later time"
        )
