"""The clock of a run in rounds: when the next one begins, when the policy is asked, and who runs in it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from trainyard.fleet.allocation import Allocation, Given, Queue, Reasons, TimeFractions
from trainyard.fleet.mechanism.allocator import Allocator
from trainyard.fleet.rounds.accounts import (
    Accounts,
    combination,
    credited,
    credited_alone,
    opened,
    priorities,
    turn,
    turn_alone,
)
from trainyard.fleet.rounds.partners import Partners
from trainyard.hardware.cluster import Cluster

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

_INF = float("inf")


class RoundScheduler:
    """Owns the accounts of a run; whoever simulates or runs jobs asks it at the beginning of every round.

    Attributes
    ----------
    accounts : of the last decision, if that gave fractions of time.
    ask_again_s : when the policy wants to be asked at the latest.
    begun_s : when the round began.
    partners : who shares devices with whom.
    """

    def __init__(self, round_s: float, allocator: Allocator) -> None:
        self.round_s, self.allocator, self.table = round_s, allocator, allocator.table
        self.accounts: Accounts | None = None
        self.ask_again_s = _INF
        self.begun_s = 0.0
        self.partners = Partners(allocator)
        # What the last decision said of jobs that wait, by serial number.
        self._said: Mapping[int, str] = {}

    @property
    def cluster(self) -> Cluster:
        """The cluster as it is now."""
        return self.allocator.cluster

    def next_s(self, now_s: float, event_s: float, arrival_s: float) -> float:
        """When the next round begins; it passes over those without jobs or devices. Infinite if nothing ever happens."""
        if event_s == _INF:
            return _INF
        if len(self.table.active) and self.cluster.num_devices:
            return now_s + self.round_s
        return math.ceil(event_s / self.round_s) * self.round_s

    def close(self, now_s: float) -> None:
        """Write down what the round that ends gave."""
        table, length_s, self.begun_s = self.table, now_s - self.begun_s, now_s
        if self.accounts is None:
            return
        if not self.partners.of:
            self.accounts = credited_alone(self.accounts, table, length_s)
            return
        rows = table.active[table.held[table.active] > 0]
        serial, first = np.unique(
            combination(table.serial[rows], self.partners.serial(rows)), return_index=True
        )
        if len(serial):
            gave_s = np.full(len(serial), length_s)
            self.accounts = credited(self.accounts, serial, table.held_type[rows][first], gave_s)

    def is_due(self, now_s: float, last: bool) -> bool:
        """Whether the policy is to be asked.

        Parameters
        ----------
        last : whether no more jobs come; to these rounds that is all one.
        """
        if self.accounts is None or now_s >= self.ask_again_s:
            return True
        return not np.array_equal(self.table.serial[self.table.active], self.accounts.jobs)

    def allocation(self, rows: Ints, now_s: float, ask: Callable[[Ints], Allocation] | None) -> Allocation:
        """Return the jobs that run in the round that begins, and where.

        Parameters
        ----------
        rows : of the jobs.
        ask : what asks the policy, if it is to be asked.
        """
        decision = None
        if ask is not None:
            decision = ask(rows)
            self.ask_again_s = decision.ask_again_s
            if not isinstance(decision.given, TimeFractions):
                self.accounts = None
                return decision
            serial, kinds = self.table.serial[rows], len(self.cluster.device_types)
            self._said = {int(serial[number]): why for number, why in decision.reasons.items()}
            self.accounts = opened(self.accounts, serial, decision.given, kinds, now_s)
        numbers, partners, types, waits = self.whose_turn(rows, now_s)
        reasons = self._reasons(rows, waits)
        given: Given = Queue(numbers, device_type=types)
        if self.partners.of or partners is not None:
            given = self.partners.place(rows, numbers, types, partners)
        if decision is None:
            return Allocation(given, reasons=reasons)
        return decision._replace(given=given, reasons=reasons)

    def _reasons(self, rows: Ints, waits: Ints) -> Reasons:
        """Why jobs are not among those whose turn it is; of the others, it is for whoever places them to say."""
        serial, accounts, said = self.table.serial[rows], self.accounts, self._said
        assert accounts is not None

        def why(number: int) -> str:
            own = int(serial[number])
            return said.get(own) or _share_of(own, accounts)

        return Reasons(waits, why)

    def whose_turn(self, rows: Ints, now_s: float) -> tuple[Ints, Ints | None, Ints, Ints]:
        """Numbers of the jobs that run, of their partners (-1 for none, None if nobody has one), their types; who waits.

        Of a policy that takes nothing away only those are there that wait; accounts are of the others, too.
        """
        assert self.accounts is not None
        accounts, room = self.accounts, self.cluster.devices_of_type
        serial, wanted = self.table.serial[rows], self.table.num_devices[rows]
        if accounts.members is None:
            numbers, types, waits = turn_alone(accounts, now_s, serial, wanted, room)
            return numbers, None, types, waits
        numbers, partners, types = self._combinations(accounts, priorities(accounts, now_s), serial, wanted)
        waits = np.ones(len(rows), np.bool_)
        waits[numbers] = False
        if partners is not None:
            waits[partners[partners >= 0]] = False
        return numbers, partners, types, np.flatnonzero(waits)

    def _combinations(
        self, accounts: Accounts, priority: Floats, serial: Ints, wanted: Ints
    ) -> tuple[Ints, Ints | None, Ints]:
        """Return the first result of `whose_turn` if there are pairs; numbers and devices of all jobs there."""
        assert accounts.members is not None
        first, second = accounts.members
        of_jobs = np.zeros(len(accounts.serial), np.int64)
        of_jobs[np.searchsorted(accounts.serial, serial)] = wanted
        both = np.where(second < 0, of_jobs, np.minimum(of_jobs[first], of_jobs[second]))
        own, types = turn(accounts, priority, both, self.cluster.devices_of_type)
        numbers, beside = np.searchsorted(serial, accounts.serial[first[own]]), second[own]
        partners = np.where(beside < 0, -1, np.searchsorted(serial, accounts.serial[beside]))
        return numbers, partners if (beside >= 0).any() else None, types

    def open(self, now_s: float) -> list[int]:
        """Let the round begin, now that jobs have their devices.

        Returns
        -------
        Rows of the jobs that end at another time than was expected of their devices: here none.
        """
        return []


def _share_of(serial: int, accounts: Accounts) -> str:
    """Say what a job is to have while it is not its turn."""
    jobs = accounts.jobs
    row = int(np.searchsorted(jobs, serial))
    if row == len(jobs) or jobs[row] != serial:
        return "it came after the last decision; the next one gives it a share of the time"
    own = np.arange(len(accounts.serial)) == row
    if accounts.members is not None:
        own = (accounts.members[0] == row) | (accounts.members[1] == row)
    share = float(np.maximum(accounts.fraction[own], 0.0).sum())
    if not share:
        return "others are to have the devices all the time until the next decision"
    part = f"{100 * share:.0f} %" if share >= 0.01 else "less than 1 %"
    return f"it is to have devices for {part} of the time, and its turn is in a later round"
