"""Rounds as in the program that the authors of Gavel published, where they are not those of the paper.

A job does a whole number of steps in a round, and the round ends with the last of its jobs. The pools are filled one
after the other instead of by one order of all pairs. A job that comes between two decisions does not run before the
next one, but holds devices free. What a job received counts as a share of what all jobs had on that type, and at a
decision every job is taken to have had half a round on every type.

References
----------
D. Narayanan, K. Santhanam, F. Kazhamiaka, A. Phanishayee, M. Zaharia. "Heterogeneity-Aware Cluster Scheduling Policies
for Deep Learning Workloads", OSDI 2020; stanford-futuredata/gavel at c4fa400, ``scheduler/scheduler.py``.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from trainyard.fleet.allocation import Allocation
from trainyard.fleet.jobs.job_table import JobTable
from trainyard.fleet.mechanism.allocator import Allocator
from trainyard.fleet.periods import Rounds
from trainyard.fleet.rounds.accounts import Accounts, credited, turn
from trainyard.fleet.rounds.round_scheduler import RoundScheduler
from trainyard.fleet.snapshot import Snapshot

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

_INF = float("inf")
_CREDIT = 0.5
"""Part of a round that every job is taken to have had on every type at a decision."""


@dataclass(frozen=True)
class GavelRounds(Rounds):
    """Rounds of whole steps.

    Attributes
    ----------
    hold_s : least time between two decisions.
    shuffle : fill the pools in an order drawn in every round: what the program does under policies that take all types
        for alike. Otherwise in the order of the cluster.
    seed : of those draws.
    """

    hold_s: float = 1920.0
    shuffle: bool = False
    seed: int = 0

    @property
    def only_simulated(self) -> bool:
        """True: a round ends when its jobs have done whole steps."""
        return True

    @property
    def own_clock(self) -> Callable[[Allocator], GavelScheduler]:
        """Factory of the scheduler that leads a run through these rounds."""
        return partial(GavelScheduler, self)


class GavelScheduler(RoundScheduler):
    """The clock of a run in such rounds; it knows the steps that jobs do in the round that runs."""

    def __init__(self, rounds: GavelRounds, allocator: Allocator) -> None:
        super().__init__(rounds.round_s, allocator)
        self.rounds = rounds
        # The program adds this to its seed for these draws.
        self._draws = random.Random(rounds.seed + 5)
        self._steps, self._idle = _Steps.none(), True
        # Time that all jobs together had on every type since the last decision, those that ended, too.
        self._total_s = np.zeros(len(self.cluster.device_types))
        # Rows of jobs that did whole steps until now, and have not ended.
        self._stepped: frozenset[int] = frozenset()

    def next_s(self, now_s: float, event_s: float, arrival_s: float) -> float:
        """When the last of its jobs has done its steps; a round of nobody ends with the next arrival."""
        if len(self._steps.rows):
            return float(self._steps.end_s.max())
        # Once more after a round in which only jobs without work ran.
        asked = self._idle and self.accounts is not None and self.accounts.since_s == now_s
        return arrival_s if arrival_s < _INF or asked else now_s

    def close(self, now_s: float) -> None:
        """Write down what jobs did; time counts from the end of the round before, though nobody may have run since."""
        steps, self._steps = self._steps, _Steps.none()
        self._stepped = steps.settle(self.table, now_s)
        self._idle = not len(steps.serial)
        if self._idle:
            return
        gave_s, self.begun_s = steps.end_s - self.begun_s, now_s
        if self.accounts is not None:
            self.accounts = credited(self.accounts, steps.serial, steps.types, gave_s)
            self._total_s = self._total_s + np.bincount(steps.types, gave_s, len(self._total_s))

    def is_due(self, now_s: float, last: bool) -> bool:
        """Whether the policy is to be asked: when other jobs are there, and the last decision is old enough."""
        is_due = super().is_due(now_s, last)
        if not is_due or self.accounts is None or now_s >= self.ask_again_s:
            return is_due
        since_s = self.accounts.since_s
        if now_s - since_s >= self.rounds.hold_s:
            return True
        # The program takes a last decision at time 0 for none at all, and forgets it when only jobs are left that wait.
        return since_s == 0 or (last and self._idle)

    def allocation(self, rows: Ints, now_s: float, ask: Callable[[Ints], Allocation] | None) -> Allocation:
        """Return the jobs that run in the round that begins, after jobs whose work is written down have reported."""
        self.allocator.rates.hear_from(sorted(self._stepped & self.allocator.rates.adaptive), now_s)
        if ask is not None:
            self._total_s = np.zeros(len(self.cluster.device_types))
        return super().allocation(rows, now_s, ask)

    def whose_turn(self, rows: Ints, now_s: float) -> tuple[Ints, None, Ints, Ints]:
        """Pool after pool by the priorities of the program; accounts may be of other jobs."""
        assert self.accounts is not None
        accounts, serial = self.accounts, self.table.serial[rows]
        priority = self._priorities(accounts)
        new = rows[serial > (accounts.serial[-1] if len(accounts.serial) else -1)]
        if len(new):
            accounts = self._with_newcomers(accounts, new)
            priority = np.concatenate((priority, np.zeros((len(new), priority.shape[1]))))
        wanted = np.zeros(len(accounts.serial), np.int64)
        wanted[np.searchsorted(accounts.serial, serial)] = self.table.num_devices[rows]
        own, types = self._pool_by_pool(accounts, priority, wanted)
        known = own < len(self.accounts.serial)
        numbers, types = np.searchsorted(serial, accounts.serial[own[known]]), types[known]
        waits = np.ones(len(rows), np.bool_)
        waits[numbers] = False
        return numbers, None, types, np.flatnonzero(waits)

    def _priorities(self, accounts: Accounts) -> Floats:
        """Fraction wanted over the share received of what all jobs had on that type."""
        credit_s = _CREDIT * self.round_s
        total_s = self._total_s + credit_s * len(accounts.serial)
        found: Floats = np.maximum(accounts.fraction, 0.0) / ((accounts.received_s + credit_s) / total_s)
        return found

    def _pool_by_pool(self, accounts: Accounts, priority: Floats, wanted: Ints) -> tuple[Ints, Ints]:
        """Return the same as `turn`, one pool after the other; ``wanted`` is changed."""
        pools = list(range(len(self.cluster.device_types)))
        if self.rounds.shuffle:
            self._draws.shuffle(pools)
        found, types = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        for pool in pools:
            only = np.where(np.arange(len(pools)) == pool, accounts.fraction, -1.0)
            own, kinds = turn(
                accounts._replace(fraction=only), priority, wanted, self.cluster.devices_of_type
            )
            wanted[own] = 0
            found.append(own)
            types.append(kinds)
        return np.concatenate(found), np.concatenate(types)

    def _with_newcomers(self, accounts: Accounts, rows: Ints) -> Accounts:
        """Jobs that no decision knows hold devices free, where those that are not urgent would get some."""
        none = np.zeros((len(rows), len(self.cluster.device_types)))
        fraction = none - 1.0
        if accounts.leftovers:
            free = self.allocator.free.by_node
            seen = Snapshot(self.begun_s, self.cluster, free, frozenset({"speed"}), rows, self.table)
            fraction[np.array([seen.gang_speeds(number) for number in range(len(rows))]) > 0] = 0.0
        return accounts._replace(
            serial=np.concatenate((accounts.serial, self.table.serial[rows])),
            fraction=np.concatenate((accounts.fraction, fraction)),
            received_s=np.concatenate((accounts.received_s, none)),
            owed_s=np.concatenate((accounts.owed_s, none)),
        )

    def open(self, now_s: float) -> list[int]:
        """Let the round begin; jobs do whole steps."""
        self._steps = _Steps.of(self.table, now_s, self.round_s)
        return self._steps.ending(self.table)


@dataclass(frozen=True, eq=False)
class _Steps:
    """Work of running jobs in one round of whole steps.

    Attributes
    ----------
    rows, serial, types : of the jobs.
    done : steps that each does; ``end_s`` is when they are done.
    """

    rows: Ints
    serial: Ints
    types: Ints
    done: Floats
    end_s: Floats

    @classmethod
    def none(cls) -> _Steps:
        """Nobody runs."""
        nobody, nothing = np.zeros(0, np.int64), np.zeros(0)
        return cls(nobody, nobody, nobody, nothing, nothing)

    @classmethod
    def of(cls, table: JobTable, now_s: float, round_s: float) -> _Steps:
        """Return as many whole steps of each job as fit in a round after a restart."""
        rows = table.active[table.held[table.active] > 0]
        waits_s, rate = np.maximum(0.0, table.since_s[rows] - now_s), table.rate[rows]
        done = np.minimum(np.floor(rate * np.maximum(0.0, round_s - waits_s)), table.left[rows])
        return cls(rows, table.serial[rows], table.held_type[rows], done, now_s + (waits_s + done / rate))

    def ending(self, table: JobTable) -> list[int]:
        """Expect the ends of those that come to theirs in this round, and of nobody else."""
        ends = self.done >= table.left[self.rows]
        table.turn[self.rows[ends]] = 0.0  # however it would change its rate before
        table.finish_s[self.rows] = np.where(ends, self.end_s, _INF)
        return [int(row) for row in self.rows[ends]]

    def settle(self, table: JobTable, now_s: float) -> frozenset[int]:
        """Write down the steps of those that have not ended; returns their rows."""
        stays = (table.serial[self.rows] == self.serial) & (table.held[self.rows] > 0)
        rows = self.rows[stays]
        table.left[rows] -= self.done[stays]
        table.since_s[rows] = np.maximum(table.since_s[rows], now_s)
        return frozenset(rows.tolist())
