"""Accounts of rounds: fractions of time become, round by round, jobs on devices.

A policy says which fraction of the time every job should have on every type of device, or every combination of two jobs
that share devices. In every round the pairs of combination and type are taken in the order of their priority, the
fraction divided by the fraction received so far; a job runs at most once. Over the rounds what is received comes to what
was wanted, as far as that can be: of three pairs of the same three jobs, only one can run at a time.

References
----------
D. Narayanan, K. Santhanam, F. Kazhamiaka, A. Phanishayee, M. Zaharia. "Heterogeneity-Aware Cluster Scheduling Policies
for Deep Learning Workloads", OSDI 2020, section 5 and algorithm 1.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy import (
    arange,
    argsort,
    bool_,
    concatenate,
    empty,
    flatnonzero,
    full,
    inf,
    int64,
    ones,
    searchsorted,
    zeros,
)
from numpy.typing import NDArray

from trainyard.compiling import compiled
from trainyard.fleet.allocation import TimeFractions
from trainyard.fleet.errors import FleetError
from trainyard.fleet.jobs.job_table import JobTable

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_CANNOT = -1.0
"""Instead of a fraction, for a type that a job has no entry for."""

_PAIRS = 1 << 31
"""Numbers of pairs are above, those of jobs below."""

_ALONE = (np.zeros(0, np.int64), np.zeros(0, np.int64))
"""Members of combinations where every job is alone."""


class Accounts(NamedTuple):
    """Fractions of time that jobs are to have, and the time that they had since the decision; columns are device types.

    Rows are combinations: first every job alone, in the order of arrival, then the pairs that have a fraction.

    Attributes
    ----------
    since_s : when it was decided.
    serial : numbers of the combinations, ascending; `combination`.
    fraction : of the time; negative where a job cannot run.
    received_s : time had.
    owed_s : time that earlier decisions promised and did not give.
    leftovers : whether devices that no fraction claims go to jobs whose fraction is 0.
    members : rows of the two jobs of every combination, where there are pairs; of a job alone, its own and -1.
    """

    since_s: float
    serial: Ints
    fraction: Floats
    received_s: Floats
    owed_s: Floats
    leftovers: bool
    members: tuple[Ints, Ints] | None = None

    @property
    def jobs(self) -> Ints:
        """Serial numbers of the jobs."""
        return self.serial if self.members is None else self.serial[: np.searchsorted(self.serial, _PAIRS)]

    @property
    def more_than(self) -> float:
        """Bound above which the fraction of a combination has to be for it to run."""
        return _CANNOT if self.leftovers else 0.0


def combination(serial: Ints, partner: Ints) -> Ints:
    """Numbers of combinations: a job alone has its serial number, all pairs have larger ones.

    Parameters
    ----------
    partner : serial number of the other job; -1 for none.
    """
    pair = (np.minimum(serial, partner) + 1) * _PAIRS + np.maximum(serial, partner)
    return np.where(partner < 0, serial, pair)


def _members(serial: Ints) -> tuple[Ints, Ints]:
    """Rows of the two jobs of every combination; for a job alone, its own and -1."""
    first, second = np.arange(len(serial)), np.full(len(serial), -1)
    pairs = serial >= _PAIRS
    first[pairs] = np.searchsorted(serial, serial[pairs] // _PAIRS - 1)
    second[pairs] = np.searchsorted(serial, serial[pairs] % _PAIRS)
    return first, second


@compiled
def in_both(first, second):  # type: ignore[no-untyped-def]
    """Places of the numbers that are in both of two ascending arrays, in the first and in the second."""
    places = empty((2, min(len(first), len(second))), int64)
    count = i = j = 0
    while i < len(first) and j < len(second):
        if first[i] == second[j]:
            places[0, count], places[1, count] = i, j
            count += 1
        step = first[i] <= second[j]
        j += first[i] >= second[j]
        i += step
    return places[0, :count], places[1, :count]


def opened(
    before: Accounts | None, serial: Ints, given: TimeFractions, num_types: int, now_s: float
) -> Accounts:
    """Accounts after a decision: nothing is received yet, and what the last one left is owed.

    Parameters
    ----------
    serial : of all jobs, ascending.
    """
    if np.any((given.device_type < 0) | (given.device_type >= num_types)):
        raise FleetError(f"a fraction of time is of a device type from 0 to {num_types - 1}")
    row, members = given.order, None
    if given.partner is not None:
        partner = np.where(given.partner < 0, -1, serial[given.partner])
        entries = combination(serial[given.order], partner)
        serial = np.union1d(serial, entries)
        row, members = np.searchsorted(serial, entries), _members(serial)
    shape = (len(serial), num_types)
    fraction, owed_s = np.full(shape, _CANNOT), zeros(shape)
    fraction[row, given.device_type] = given.fraction
    if before is not None:
        due_s = np.maximum(before.fraction, 0.0) * (now_s - before.since_s)
        own, old = in_both(serial, before.serial)
        owed_s[own] = (before.owed_s + (due_s - before.received_s))[old]
    return Accounts(now_s, serial, fraction, zeros(shape), owed_s, given.leftovers, members)


def credited(accounts: Accounts, serial: Ints, device_type: Ints, received_s: Floats) -> Accounts:
    """Accounts after combinations, each on one type, had devices for a time."""
    known = accounts.serial, accounts.received_s
    return accounts._replace(received_s=_credited(*known, serial, device_type, received_s))


def credited_alone(accounts: Accounts, table: JobTable, gave_s: float) -> Accounts:
    """The same of all jobs that run now, each alone, and all for as long."""
    known = accounts.serial, accounts.received_s
    return accounts._replace(received_s=_credited_alone(*known, table.active, table.data, gave_s))


@compiled
def _credited_alone(known, received_s, active, table, gave_s):  # type: ignore[no-untyped-def]
    rows = active[table.held[active] > 0]
    gave = full(len(rows), gave_s)
    return _credited(known, received_s, table.serial[rows], table.held_type[rows], gave)


@compiled
def _credited(known, received_s, serial, device_type, gave_s):  # type: ignore[no-untyped-def]
    received, rows = received_s.copy(), searchsorted(known, serial)
    for i in range(len(rows)):
        received[rows[i], device_type[i]] += gave_s[i]
    return received


def turn_alone(
    accounts: Accounts, now_s: float, serial: Ints, wanted: Ints, room: Ints
) -> tuple[Ints, Ints, Ints]:
    """Return what `turn` returns if every job is alone, in one call.

    Parameters
    ----------
    serial, wanted : number and devices of every job that is there; accounts may be of more.

    Returns
    -------
    Places of the jobs that run, and after them of those that may have what is left over where one of these finds no
    place; the type of each; and places of all that do not run by number.
    """
    return _turn_alone(  # type: ignore[no-any-return]
        accounts.serial, accounts.fraction, accounts.received_s, accounts.owed_s, now_s - accounts.since_s,
        serial, wanted, room, accounts.more_than,
    )  # fmt: skip


@compiled
def _turn_alone(  # type: ignore[no-untyped-def]
    known, fraction, received_s, owed_s, elapsed_s, serial, wanted, room, more_than
):
    priority, nobody = _priorities(fraction, received_s, elapsed_s), zeros(0, int64)
    all_wanted = zeros(len(known), int64)
    all_wanted[searchsorted(known, serial)] = wanted
    rows, types = _in_turn(fraction, owed_s, priority, all_wanted, more_than)
    runs = _greedy(rows, types, all_wanted, room, nobody, nobody)
    places, waits = searchsorted(serial, known[rows]), ones(len(serial), bool_)
    waits[places[runs]] = False
    order, num = concatenate((flatnonzero(runs), empty(len(serial), int64))), runs.sum()
    is_named = ~waits
    for i in range(len(rows) if more_than < 0 else 0):
        if not is_named[places[i]]:
            is_named[places[i]] = True
            order[num] = i
            num += 1
    return places[order[:num]], types[order[:num]], flatnonzero(waits)


def priorities(accounts: Accounts, now_s: float) -> Floats:
    """Fraction wanted over fraction received of every combination on every type; infinite for what it waits for."""
    found: Floats = _priorities(accounts.fraction, accounts.received_s, now_s - accounts.since_s)
    return found


@compiled
def _priorities(fraction, received_s, elapsed_s):  # type: ignore[no-untyped-def]
    found = zeros(fraction.shape)
    for row in range(fraction.shape[0]):
        for kind in range(fraction.shape[1]):
            if fraction[row, kind] > 0:
                had_s = received_s[row, kind]
                found[row, kind] = fraction[row, kind] * elapsed_s / had_s if had_s else inf
    return found


def turn(accounts: Accounts, priority: Floats, wanted: Ints, room: Ints) -> tuple[Ints, Ints]:
    """Choose the entries that run in the next round (algorithm 1).

    Of equal priorities the entry that more is owed to comes first, then the one with the larger fraction, then the job
    that came first; jobs alone come before pairs.

    Parameters
    ----------
    priority : of every combination on every type.
    wanted : devices of every combination; 0 for one of which a job has ended.
    room : devices of every type.

    Returns
    -------
    Rows of the combinations that run, most urgent first, and the type of each.
    """
    rows, types = _in_turn(accounts.fraction, accounts.owed_s, priority, wanted, accounts.more_than)
    runs = _greedy(rows, types, wanted, room, *(accounts.members or _ALONE))
    return rows[runs], types[runs]


@compiled
def _in_turn(fraction, owed_s, priority, wanted, more_than):  # type: ignore[no-untyped-def]
    """All combinations and types that can run, most urgent first."""
    rows, types = empty(fraction.size, int64), empty(fraction.size, int64)
    count = 0
    for row in range(fraction.shape[0]):
        for kind in range(fraction.shape[1]):
            if wanted[row] and fraction[row, kind] > more_than:
                rows[count], types[count] = row, kind
                count += 1
    keys = empty((3, count))
    for i in range(count):
        row, kind = rows[i], types[i]
        keys[0, i], keys[1, i] = -fraction[row, kind], -owed_s[row, kind]
        keys[2, i] = -priority[row, kind]
    # The last is the most important: each sort leaves those that are equal as the ones before have put them.
    order = arange(count)
    for key in keys:
        order = order[argsort(key[order], kind="mergesort")]
    return rows[order], types[order]


@compiled
def _greedy(rows, types, wanted, room, first, second):  # type: ignore[no-untyped-def]
    left = room.copy()
    total = left.sum()
    taken, runs = zeros(len(wanted), bool_), zeros(len(rows), bool_)
    for i in range(len(rows)):
        if total == 0:
            break
        row, pool = rows[i], types[i]
        job, other = row, -1
        if len(first):
            job, other = first[row], second[row]
        if not taken[job] and (other < 0 or not taken[other]) and wanted[row] <= left[pool]:
            left[pool] -= wanted[row]
            total -= wanted[row]
            taken[job] = runs[i] = True
            if other >= 0:
                taken[other] = True
    return runs
