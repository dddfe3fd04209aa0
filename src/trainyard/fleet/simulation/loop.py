"""Events and decisions in compiled code: what `fleet/simulate.py` does, for jobs and policies that allow it.

A function that a policy gives is compiled into the loop. The loop leaves off where Python has to do something, and goes
on from there, also in the middle of a moment.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from trainyard.compiling import compiled, lean
from trainyard.engine.agenda import drop_first, expect
from trainyard.fleet.compiled_policy import Seen
from trainyard.fleet.mechanism.exchange import exchanged
from trainyard.fleet.mechanism.job_table import Floats, Ints, Table
from trainyard.fleet.mechanism.preempt import change_holding
from trainyard.fleet.mechanism.transitions import (
    arrive,
    needs_of_rows,
    release_job,
    remove_row,
    start_jobs,
    waiting_rows,
)
from trainyard.fleet.place.find import place_jobs
from trainyard.fleet.place.nodes import ANYWHERE, CONSOLIDATED
from trainyard.fleet.simulation.ends import next_end

# Why the loop leaves off: all jobs that it knows of have come; none that is there can end; there is no room for more
# notes, rows, or devices that are written down; it is time to look whether anything goes on; the policy wants to decide
# again at once.
COMING, STUCK, NOTES, ROWS, DEVICES, LOOK, EARLY = range(7)

# Rows of the notes of ends.
(
    END_SERIAL, END_ALLOWED, END_FIRST_START_S, END_S, END_WAITED_S, END_LOST_S, END_DEVICE_S, END_LOST_DEVICE_S,
    END_PREEMPTED, END_STARTS, END_JOB_S,
) = range(11)  # fmt: skip
NUM_NOTED = END_JOB_S + 1


class Tables(NamedTuple):
    """What the loop works on.

    Attributes
    ----------
    table : the columns of the books.
    rows, unused : rows of the jobs that are there, in the order of their arrival; rows that nobody has, the last is next.
    written : devices of all jobs, and some that jobs had before.
    kind_of, free : of devices; ``free`` are the tables of `FreeDevices`.
    when_s, heap, place : the agenda of ends.
    coming : jobs that come, a row each, as in that table.
    ended, used_s, used, queued : notes of jobs that ended, a column each, and of devices in use and jobs that wait.
    """

    table: Table
    rows: Ints
    unused: Ints
    written: Ints
    kind_of: Ints
    free: tuple[Ints, Ints, Ints, Floats, Ints]
    when_s: Floats
    heap: Ints
    place: Ints
    coming: Table
    ended: Floats
    used_s: Floats
    used: Floats
    queued: Floats


class Counts(NamedTuple):
    """Numbers that change.

    Attributes
    ----------
    active, entered, decided : jobs that are there, that ever came, and that came until the last decision.
    unused : rows that nobody has.
    ends : how many are in the agenda.
    waiting : jobs that have no devices.
    free, free_when_blocked : devices that nobody has; and that nobody had when a job blocked the later ones, or -1.
    stands : whether the last decision does, as 0 or 1.
    decisions, moments : how many there were.
    let_in : of the jobs that come, those that did.
    written : devices that are written down.
    ended, used : notes that are taken.
    """

    active: int
    entered: int
    decided: int
    unused: int
    ends: int
    waiting: int
    free: int
    free_when_blocked: int
    stands: int
    decisions: int
    moments: int
    let_in: int
    written: int
    ended: int
    used: int


(
    ACTIVE, ENTERED, DECIDED, UNUSED, ENDS, WAITING, FREE, FREE_WHEN_BLOCKED, STANDS, DECISIONS, MOMENTS, LET_IN, WRITTEN,
    ENDED, USED,
) = range(len(Counts._fields))  # fmt: skip


class Times(NamedTuple):
    """Times that change.

    Attributes
    ----------
    now_s, moment_s : the last moment that is over; the one that is not, infinite if there is none.
    wake_s : when the policy wants to decide.
    counted_s, job_s : until when jobs times time are counted, and what they are.
    """

    now_s: float
    moment_s: float
    wake_s: float
    counted_s: float
    job_s: float


NOW_S, MOMENT_S, WAKE_S, COUNTED_S, JOBS_TIMES_S = range(len(Times._fields))


class Terms(NamedTuple):
    """What stays as it is in a run.

    Attributes
    ----------
    preempts, backfill, one_queue, stands, blocks : of the policy.
    how : number of the placement of jobs for which the policy names none.
    room : devices of every type.
    pauses_s : what a first start takes, and another one.
    look_every : moments between two looks at whether anything goes on.
    """

    preempts: bool
    backfill: bool
    one_queue: bool
    stands: bool
    blocks: bool
    how: int
    room: Ints
    pauses_s: tuple[float, float]
    look_every: int


@compiled
def run(decide, rules, state, terms, tables, counts, clock, num_coming, is_last):  # type: ignore[no-untyped-def]
    """Go on until something is to be done that only Python can do.

    Parameters
    ----------
    decide, rules : of the policy; see `CompiledPolicy`.
    state : of the policy.
    terms, tables : what stays as it is, and what is worked on.
    counts, clock : `Counts` and `Times`, as arrays.
    num_coming, is_last : jobs that come, and whether no others do.

    Returns
    -------
    Why it leaves off, and the state then.
    """
    while True:
        if counts[LET_IN] == num_coming and not (is_last and counts[ACTIVE]):
            return COMING, state
        next_s = _next_s(tables, counts, clock, num_coming)
        if next_s == np.inf:
            return STUCK, state
        clock[MOMENT_S] = next_s
        why = _pass_until(next_s, tables, counts, clock, num_coming, is_last)
        if why >= 0:
            return why, state
        clock[NOW_S] = next_s
        if clock[WAKE_S] <= next_s:
            clock[WAKE_S] = np.inf
        if _may_change(terms, counts):
            if counts[WRITTEN] + len(tables.kind_of) > len(tables.written):
                return DEVICES, state
            state = _decided(decide, rules, state, terms, tables, counts, clock)
            if clock[WAKE_S] <= next_s:
                return EARLY, state
        clock[MOMENT_S] = np.inf
        counts[MOMENTS] += 1
        if counts[MOMENTS] % terms.look_every == 0:
            return LOOK, state


@lean
def _next_s(tables, counts, clock, num_coming):  # type: ignore[no-untyped-def]
    """The next moment at which the policy is asked, or the one that is not over."""
    arrival_s = tables.coming.arrival_s[counts[LET_IN]] if counts[LET_IN] < num_coming else np.inf
    return min(clock[MOMENT_S], arrival_s, _end_s(tables, counts), clock[WAKE_S])


@lean
def _end_s(tables, counts):  # type: ignore[no-untyped-def]
    counts[ENDS], end_s = next_end(
        tables.table.finish_s, tables.when_s, tables.heap, tables.place, counts[ENDS]
    )
    return end_s


@lean
def _pass_until(next_s, tables, counts, clock, num_coming, is_last):  # type: ignore[no-untyped-def]
    """All that happens until a moment, ends before arrivals; returns why to leave off, or -1."""
    end_s = _end_s(tables, counts)
    while True:
        if counts[ENDED] == tables.ended.shape[1] or counts[USED] + 2 > len(tables.used):
            return NOTES
        if counts[LET_IN] == num_coming and not is_last:
            return COMING
        arrival_s = tables.coming.arrival_s[counts[LET_IN]] if counts[LET_IN] < num_coming else np.inf
        if end_s <= next_s and end_s <= arrival_s:
            row = tables.heap[0]
            counts[ENDS] = drop_first(tables.when_s, tables.heap, tables.place, counts[ENDS])
            _end(row, end_s, tables, counts, clock)
            end_s = _end_s(tables, counts)
        elif arrival_s <= next_s:
            if counts[UNUSED] == 0:
                return ROWS
            _let_in(arrival_s, tables, counts, clock)
        else:
            return -1


@lean
def _count(now_s, counts, clock):  # type: ignore[no-untyped-def]
    """Jobs times time until now, before their number changes."""
    clock[JOBS_TIMES_S] += counts[ACTIVE] * (now_s - clock[COUNTED_S])
    clock[COUNTED_S] = now_s
    return clock[JOBS_TIMES_S]


@lean
def _let_in(now_s, tables, counts, clock):  # type: ignore[no-untyped-def]
    """The next job comes."""
    number, counts[UNUSED] = counts[LET_IN], counts[UNUSED] - 1
    row = tables.unused[counts[UNUSED]]
    job_s = _count(now_s, counts, clock)
    arrive(tables.table, row, counts[ENTERED], tables.coming, number, now_s)
    tables.table.job_s[row] = job_s
    tables.rows[counts[ACTIVE]] = row
    counts[ACTIVE] += 1
    counts[ENTERED] += 1
    counts[LET_IN] += 1
    counts[WAITING] += 1
    _note_use(now_s, tables, counts)


@lean
def _end(row, now_s, tables, counts, clock):  # type: ignore[no-untyped-def]
    """A job has done its work."""
    table = tables.table
    counts[FREE] += change_holding(row, -1, table, tables.written, tables.free)
    release_job(table, row, now_s, False)
    _note_use(now_s, tables, counts)
    note = tables.ended[:, counts[ENDED]]
    note[END_SERIAL], note[END_ALLOWED] = table.serial[row], table.allowed[row]
    note[END_FIRST_START_S], note[END_S] = table.first_start_s[row], now_s
    note[END_DEVICE_S], note[END_JOB_S] = table.attained_device_s[row], _count(now_s, counts, clock)
    note[END_JOB_S] -= table.job_s[row]
    note[END_WAITED_S], note[END_LOST_S] = table.waited_s[row], table.lost_s[row]
    note[END_LOST_DEVICE_S] = table.lost_device_s[row]
    note[END_PREEMPTED], note[END_STARTS] = table.num_preempted[row], table.num_starts[row]
    counts[ENDED] += 1
    remove_row(tables.rows, counts[ACTIVE], row)
    counts[ACTIVE] -= 1
    tables.unused[counts[UNUSED]] = row
    counts[UNUSED] += 1


@lean
def _note_use(now_s, tables, counts):  # type: ignore[no-untyped-def]
    """Devices in use and jobs that wait from now on; see `Recorder.in_use`."""
    last, in_use, waiting = counts[USED] - 1, len(tables.kind_of) - counts[FREE], counts[WAITING]
    if last >= 0 and tables.used[last] == in_use and tables.queued[last] == waiting:
        return
    if last < 0 or tables.used_s[last] != now_s:
        counts[USED] += 1
        last += 1
    tables.used_s[last], tables.used[last], tables.queued[last] = now_s, in_use, waiting


@lean
def _may_change(terms, counts):  # type: ignore[no-untyped-def]
    """Whether a decision could have an effect."""
    if terms.preempts:
        return counts[ACTIVE] > 0 and (counts[WAITING] > 0 or counts[STANDS] == 0)
    return counts[WAITING] > 0 and counts[FREE] > 0 and counts[FREE] != counts[FREE_WHEN_BLOCKED]


@compiled
def _decided(decide, rules, state, terms, tables, counts, clock):  # type: ignore[no-untyped-def]
    """Ask the policy and bring about what it says; returns its state."""
    now_s, rows = clock[NOW_S], tables.rows[: counts[ACTIVE]]
    if not terms.preempts:
        rows = np.empty(counts[ACTIVE], np.int64)
        rows = rows[: waiting_rows(tables.rows, counts[ACTIVE], tables.table.held, rows)]
    seen = Seen(tables.table, rows, now_s, terms.room)
    order, consolidate, clock[WAKE_S], state = decide(rules, state, seen)
    counts[DECIDED], counts[STANDS] = counts[ENTERED], terms.stands
    counts[DECISIONS] += 1
    hows = np.empty(len(consolidate), np.int64)
    for i in range(len(hows)):
        hows[i] = -1 if consolidate[i] < 0 else (CONSOLIDATED if consolidate[i] else ANYWHERE)
    if terms.preempts:
        started = _exchange(order, hows, rows, terms, tables, counts, now_s)
    else:
        started = _begin(order, hows, rows, terms, tables, counts, now_s)
    for row in started:
        counts[ENDS] = expect(
            tables.when_s, tables.heap, tables.place, counts[ENDS], row, tables.table.finish_s[row]
        )
    _note_use(now_s, tables, counts)
    is_one_pool = len(terms.room) == 1 and tables.free[4].shape[0] == 1
    is_blocked = terms.blocks and counts[WAITING] and is_one_pool
    counts[FREE_WHEN_BLOCKED] = counts[FREE] if is_blocked else -1
    return state


@compiled
def _exchange(order, hows, rows, terms, tables, counts, now_s):  # type: ignore[no-untyped-def]
    """Devices are taken away and given to others; returns the rows of those that got some."""
    none = np.zeros(0, np.int64)
    started, _, _, num_given, num_freed, num_stopped, _ = exchanged(
        order, none, none, hows, rows, tables.table, tables.written, tables.kind_of, tables.free, terms.room,
        terms.how, terms.backfill, counts[WRITTEN], now_s, terms.pauses_s,
    )  # fmt: skip
    counts[WRITTEN] += num_given
    counts[FREE] += num_freed
    counts[WAITING] += num_stopped
    return started


@compiled
def _begin(order, hows, rows, terms, tables, counts, now_s):  # type: ignore[no-untyped-def]
    """Jobs that wait get devices that are free; returns the rows of those that do."""
    most = len(order)
    has_partitions = tables.free[4].shape[0] > 1
    if not terms.backfill and len(terms.room) == 1 and not has_partitions:
        # Every job takes a device at least, and who comes after one that finds no place is not tried.
        most = min(most, counts[FREE] + 1)
    wanted, none, has_auxiliary = rows[order[:most]], np.zeros(0, np.int64), tables.free[3].shape[1] > 0
    needs = needs_of_rows(tables.table, wanted) if has_auxiliary else np.empty((2, 0))
    partitions = tables.table.partition[wanted] if has_partitions else none
    numbers, given, sizes = place_jobs(
        tables.table.num_devices[wanted], none, tables.table.allowed[wanted], partitions, hows, terms.how,
        terms.backfill, terms.one_queue and not terms.backfill, needs, tables.free,
    )  # fmt: skip
    started = wanted[numbers]
    tables.table.has_auxiliary[started] = has_auxiliary
    waited, _ = start_jobs(
        tables.table, started, given, sizes, tables.kind_of, tables.written, counts[WRITTEN], now_s,
        terms.pauses_s,
    )  # fmt: skip
    counts[WRITTEN] += len(given)
    counts[FREE] -= len(given)
    counts[WAITING] -= waited
    return started
