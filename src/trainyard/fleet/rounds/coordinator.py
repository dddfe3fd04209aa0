"""Devices and rounds together: what a run does when jobs leave, nodes come and go, leases end, and it is time to decide.

Simulations and runs for real both act through a `Coordinator`; they differ in who tells them what happens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from trainyard.fleet.allocation import Allocation
from trainyard.fleet.jobs.job_table import Ints
from trainyard.fleet.mechanism.allocator import Allocator
from trainyard.fleet.periods import Rounds
from trainyard.fleet.rounds.round_scheduler import RoundScheduler


class Coordinator:
    """An allocator, and the rounds in which it decides, if it does.

    Parameters
    ----------
    rounds : when decisions are made; None for whenever something happens.
    """

    def __init__(self, allocator: Allocator, rounds: Rounds | None) -> None:
        self.allocator, self.table = allocator, allocator.table
        self.rounds: RoundScheduler | None = None
        if rounds is not None:
            clock = rounds.own_clock or partial(RoundScheduler, rounds.round_s)
            self.rounds = clock(allocator)

    def left(self, row: int, now_s: float) -> list[int]:
        """A job has left its devices; returns rows of those who had the same, and have them for themselves now."""
        return [] if self.rounds is None else self.rounds.partners.parted(row, now_s)

    def change_nodes(
        self, away: Iterable[int], now_s: float, saves: bool = True
    ) -> tuple[list[int], list[int]]:
        """From now on these nodes, and no others, cannot be used.

        Parameters
        ----------
        saves : whether jobs on nodes that go keep all that they did, or only what is in their last checkpoint.

        Returns
        -------
        Rows of the jobs that lose their devices, and of those who shared these and run at another speed now.
        """
        allocator, away = self.allocator, frozenset(away)
        lost = self._on_lost_nodes(away)
        faster = [partner for row in lost for partner in self.left(row, now_s)]
        for row in [] if saves else lost:
            allocator.lose_unsaved(row, now_s, 0.0)
        allocator.stop(lost, now_s)
        allocator.change_nodes(away, now_s)
        self._ask_again(now_s)
        return lost, faster

    def _on_lost_nodes(self, away: frozenset[int]) -> list[int]:
        """Return the rows of the jobs that have devices of these nodes."""
        lost, grants = ~self.allocator.cluster.without(away).is_usable, self.table.grants
        return [
            row
            for row in self.table.active.tolist()
            if (grant := grants[row]) is not None and lost[list(grant.devices)].any()
        ]

    def end_leases(self, now_s: float) -> list[int]:
        """Take devices back whose leases end, unless the policy does that itself; returns the rows of their jobs."""
        ending = self.allocator.end_leases(now_s)
        if ending:
            self._ask_again(now_s)
        return ending

    def _ask_again(self, now_s: float) -> None:
        """Have the policy asked in the next round, whoever is there."""
        if self.rounds is not None:
            self.rounds.ask_again_s = now_s

    def rows(self) -> Ints:
        """Return the jobs that the policy decides on: the waiting ones, or all if the policy takes devices away."""
        # Copied, because what a policy sees does not change under it.
        return self.table.active.copy() if self.allocator.preempts else self.table.waiting()

    def decision(
        self, rows: Ints, now_s: float, ask: Callable[[Ints], Allocation], last: bool = False
    ) -> Allocation:
        """Return the allocation from now on: the policy's, or that of the round that begins.

        Parameters
        ----------
        rows : of the jobs that it is about.
        ask : what asks the policy; not called in a round that needs no new answer.
        last : whether no more jobs come.
        """
        if self.rounds is None:
            return ask(rows)
        return self.rounds.allocation(rows, now_s, ask if self.rounds.is_due(now_s, last) else None)
