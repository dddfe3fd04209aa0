"""The clock of a run in rounds: when the next one begins, when the policy is asked, and who runs in it."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trainyard.fleet.allocation import Allocation, Given, Queue, Reasons, TimeFractions
from trainyard.fleet.mechanism.allocator import Allocator
from trainyard.fleet.mechanism.job_table import JobTable
from trainyard.fleet.mechanism.partners import Partners
from trainyard.fleet.mechanism.wrong import check_given
from trainyard.fleet.rounds.rounds import (
    Accounts,
    Published,
    Rounds,
    combination,
    credited,
    credited_alone,
    opened,
    priorities,
    published_priorities,
    turn,
    turn_alone,
)
from trainyard.fleet.site import Site
from trainyard.fleet.snapshot import Snapshot

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

_INF = float("inf")


class RoundScheduler:
    """Owns the accounts of a run, and the steps that jobs do in the round that runs."""

    def __init__(self, rounds: Rounds, allocator: Allocator) -> None:
        self.rounds, self.allocator, self.books = rounds, allocator, allocator.books
        self.accounts: Accounts | None = None
        self.ask_again_s = _INF
        self.begun_s = 0.0
        published = rounds.published
        # The program adds this to its seed for these draws.
        self._draws = random.Random(published.seed + 5) if published is not None else None
        self._steps, self._idle = _Steps.none(), True
        # Rows of jobs that did whole steps until now, and have not ended.
        self.stepped: frozenset[int] = frozenset()
        self.partners = Partners(allocator)
        # What the last decision said of jobs that wait, by serial number.
        self._said: Mapping[int, str] = {}

    @property
    def site(self) -> Site:
        """The cluster as it is now."""
        return self.allocator.site

    def next_s(self, now_s: float, event_s: float, arrival_s: float) -> float:
        """When the next round begins; it passes over rounds without jobs. Infinite if nothing ever happens."""
        length_s = self.rounds.round_s
        if self.rounds.published is not None:
            if len(self._steps.rows):
                return float(self._steps.end_s.max())
            # Once more after a round in which only jobs without work ran.
            asked = self._idle and self.accounts is not None and self.accounts.since_s == now_s
            return arrival_s if arrival_s < _INF or asked else now_s
        if event_s == _INF:
            return _INF
        if len(self.books.active):
            return now_s + length_s
        return math.ceil(event_s / length_s) * length_s

    def close(self, now_s: float) -> None:
        """Write down what the round that ends gave."""
        books = self.books
        if self.rounds.published is None:
            length_s, self.begun_s = now_s - self.begun_s, now_s
            if not self.partners.of:
                if self.accounts is not None:
                    self.accounts = credited_alone(self.accounts, books, length_s)
                return
            rows = books.active[books.held[books.active] > 0]
            serial, first = np.unique(
                combination(books.serial[rows], self.partners.serial(rows)), return_index=True
            )
            types, gave_s = books.held_type[rows][first], np.full(len(serial), length_s)
        else:
            # The program counts from the end of the round before, though nobody may have run in between.
            steps, self._steps = self._steps, _Steps.none()
            serial, types, gave_s = steps.serial, steps.types, steps.end_s - self.begun_s
            self.stepped = steps.settle(books, now_s)
            self._idle = not len(serial)
            if not self._idle:
                self.begun_s = now_s
        if self.accounts is not None and len(serial):
            self.accounts = credited(self.accounts, serial, types, gave_s)

    def is_due(self, now_s: float, last: bool) -> bool:
        """Whether the policy is to be asked.

        Parameters
        ----------
        last : whether no more jobs come.
        """
        if self.accounts is None or now_s >= self.ask_again_s:
            return True
        if np.array_equal(self.books.serial[self.books.active], self.accounts.jobs):
            return False
        published, since_s = self.rounds.published, self.accounts.since_s
        if published is None or now_s - since_s >= published.hold_s:
            return True
        # The program takes a last decision at time 0 for none at all, and forgets it when only jobs are left that wait.
        return since_s == 0 or (last and self._idle)

    def allocation(self, rows: Ints, now_s: float, ask: Callable[[Ints], Allocation] | None) -> Allocation:
        """Who runs in the round that begins.

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
            check_given(decision.given, rows, self.books)
            serial, kinds = self.books.serial[rows], len(self.site.device_types)
            self._said = {int(serial[number]): why for number, why in decision.reasons.items()}
            self.accounts = opened(self.accounts, serial, decision.given, kinds, now_s)
        numbers, partners, types, waits = self._turn(rows, now_s)
        reasons = self._reasons(rows, waits)
        given: Given = Queue(numbers, device_type=types)
        if self.partners.of or partners is not None:
            given = self.partners.place(rows, numbers, types, partners)
        return (decision or Allocation(given))._replace(given=given, reasons=reasons)

    def _reasons(self, rows: Ints, waits: Ints) -> Reasons:
        """Why jobs are not among those whose turn it is; of the others, it is for whoever places them to say."""
        serial, accounts, said = self.books.serial[rows], self.accounts, self._said
        assert accounts is not None

        def why(number: int) -> str:
            own = int(serial[number])
            return said.get(own) or _share_of(own, accounts)

        return Reasons(waits, why)

    def _turn(self, rows: Ints, now_s: float) -> tuple[Ints, Ints | None, Ints, Ints]:
        """Numbers of the jobs that run, of their partners (-1 for none, None if nobody has one), their types; who waits.

        Of a policy that takes nothing away only those are there that wait; accounts are of the others, too.
        """
        assert self.accounts is not None
        accounts, room = self.accounts, self.site.devices_of_type
        serial, wanted = self.books.serial[rows], self.books.num_devices[rows]
        if self.rounds.published is None and accounts.members is None:
            numbers, types, waits = turn_alone(accounts, now_s, serial, wanted, room)
            return numbers, None, types, waits
        partners = None
        if self.rounds.published is not None:
            numbers, types = self._published_turn(self.rounds.published, rows)
        else:
            priority = priorities(accounts, now_s)
            numbers, partners, types = self._combinations(accounts, priority, serial, wanted)
        waits = np.ones(len(rows), np.bool_)
        waits[numbers] = False
        if partners is not None:
            waits[partners[partners >= 0]] = False
        return numbers, partners, types, np.flatnonzero(waits)

    def _published_turn(self, published: Published, rows: Ints) -> tuple[Ints, Ints]:
        """Numbers of the jobs that run by the rules of the program, and their types; accounts may be of other jobs."""
        assert self.accounts is not None
        accounts, room, serial = self.accounts, self.site.devices_of_type, self.books.serial[rows]
        priority = published_priorities(accounts, published.credit * self.rounds.round_s)
        pools = self._pools(published.shuffle)
        new = rows[serial > (accounts.serial[-1] if len(accounts.serial) else -1)]
        if len(new):
            accounts = self._with_newcomers(accounts, new)
            priority = np.concatenate((priority, np.zeros((len(new), priority.shape[1]))))
        wanted = np.zeros(len(accounts.serial), np.int64)
        wanted[np.searchsorted(accounts.serial, serial)] = self.books.num_devices[rows]
        own, types = turn(accounts, priority, wanted, room, pools)
        known = own < len(self.accounts.serial)
        return np.searchsorted(serial, accounts.serial[own[known]]), types[known]

    def _combinations(
        self, accounts: Accounts, priority: Floats, serial: Ints, wanted: Ints
    ) -> tuple[Ints, Ints | None, Ints]:
        """What `_turn` returns first, where there are pairs; of every job that is there, its number and its devices."""
        assert accounts.members is not None
        first, second = accounts.members
        of_jobs = np.zeros(len(accounts.serial), np.int64)
        of_jobs[np.searchsorted(accounts.serial, serial)] = wanted
        both = np.where(second < 0, of_jobs, np.minimum(of_jobs[first], of_jobs[second]))
        own, types = turn(accounts, priority, both, self.site.devices_of_type)
        numbers, beside = np.searchsorted(serial, accounts.serial[first[own]]), second[own]
        partners = np.where(beside < 0, -1, np.searchsorted(serial, accounts.serial[beside]))
        return numbers, partners if (beside >= 0).any() else None, types

    def _with_newcomers(self, accounts: Accounts, rows: Ints) -> Accounts:
        """Jobs that no decision knows hold devices free, where those that are not urgent would get some."""
        none = np.zeros((len(rows), len(self.site.device_types)))
        fraction = none - 1.0
        if accounts.leftovers:
            free = self.allocator.free.by_node
            seen = Snapshot(self.begun_s, self.site, free, frozenset({"speed"}), rows, self.books)
            fraction[np.array([seen.gang_speeds(number) for number in range(len(rows))]) > 0] = 0.0
        return accounts._replace(
            serial=np.concatenate((accounts.serial, self.books.serial[rows])),
            fraction=np.concatenate((accounts.fraction, fraction)),
            received_s=np.concatenate((accounts.received_s, none)),
            owed_s=np.concatenate((accounts.owed_s, none)),
        )

    def _pools(self, shuffle: bool) -> tuple[int, ...]:
        pools = list(range(len(self.site.device_types)))
        if shuffle:
            assert self._draws is not None
            self._draws.shuffle(pools)
        return tuple(pools)

    def open(self, now_s: float) -> list[int]:
        """Let the round begin: under the published rules jobs do whole steps.

        Returns
        -------
        Rows of the jobs that end in it, as far as that was not expected before.
        """
        if self.rounds.published is None:
            return []
        self._steps = _Steps.of(self.books, now_s, self.rounds.round_s)
        return self._steps.ending(self.books)


def _share_of(serial: int, accounts: Accounts) -> str:
    """What a job whose turn it is not is to have, in words."""
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


@dataclass(frozen=True, eq=False)
class _Steps:
    """What running jobs do in one round of whole steps.

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
    def of(cls, books: JobTable, now_s: float, round_s: float) -> _Steps:
        """As many whole steps as fit in a round after a restart."""
        rows = books.active[books.held[books.active] > 0]
        waits_s, rate = np.maximum(0.0, books.since_s[rows] - now_s), books.rate[rows]
        done = np.minimum(np.floor(rate * np.maximum(0.0, round_s - waits_s)), books.left[rows])
        return cls(rows, books.serial[rows], books.held_type[rows], done, now_s + (waits_s + done / rate))

    def ending(self, books: JobTable) -> list[int]:
        """Expect the ends of those that come to theirs in this round, and of nobody else."""
        ends = self.done >= books.left[self.rows]
        books.turn[self.rows[ends]] = 0.0  # however it would change its rate before
        books.finish_s[self.rows] = np.where(ends, self.end_s, _INF)
        return [int(row) for row in self.rows[ends]]

    def settle(self, books: JobTable, now_s: float) -> frozenset[int]:
        """Write down the steps of those that have not ended; returns their rows."""
        stays = (books.serial[self.rows] == self.serial) & (books.held[self.rows] > 0)
        rows = self.rows[stays]
        books.left[rows] -= self.done[stays]
        books.since_s[rows] = np.maximum(books.since_s[rows], now_s)
        return frozenset(rows.tolist())
