"""What happens to jobs and their devices: one arrives, starts, works at a rate, loses its devices, ends or leaves.

Simulations in Python and in compiled code and runs for real all change a run's `State` by these functions.
"""

from __future__ import annotations

from typing import NamedTuple, get_type_hints

import numpy as np
from numpy.typing import NDArray

from trainyard.compiling import compiled, lean
from trainyard.fleet.mechanism.preempt import change_holding

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Records = NDArray[np.void]

COUNTS = np.dtype(
    [
        *(
            (name, np.int64)
            for name in ("active", "entered", "decided", "waiting", "written", "ended", "used")
        ),
        *((name, np.float64) for name in ("counted_s", "job_s")),
    ],
    align=True,
)
"""What changes with jobs: how many are there, ever came, came before the last decision, and have no devices; how many
devices are written down, and ends and changes of use noted; until when jobs times time are counted, and what they are."""


class EndNote(NamedTuple):
    """What is noted of a job that has done its work.

    Attributes
    ----------
    serial, allowed, num_preempted, num_starts, first_start_s, waited_s, lost_s, lost_device_s : as in `JobTable`.
    device_s : devices times time that it had.
    job_s : jobs times time, over all jobs, while it was there.
    """

    serial: int
    allowed: int
    num_preempted: int
    num_starts: int
    first_start_s: float
    end_s: float
    waited_s: float
    lost_s: float
    device_s: float
    lost_device_s: float
    job_s: float


ENDED = np.dtype(list(get_type_hints(EndNote).items()), align=True)


class State(NamedTuple):
    """The jobs of a run and its devices, as compiled functions take them.

    Attributes
    ----------
    table : a row for every job that is there, and rows for more.
    rows, unused : rows of the jobs that are there, in the order of their arrival; rows that nobody has, the last is next.
    written : devices of all jobs, and some that jobs had before.
    kind_of, free, room : of devices: the index of the type of each, the tables of `FreeDevices`, and how many of every
        type can be given out.
    counts : one of `COUNTS`.
    ended, used : room for notes: of jobs that end, as in `EndNote`; of devices in use and jobs that wait, as in `Series`.
    """

    table: Records
    rows: Ints
    unused: Ints
    written: Ints
    kind_of: Ints
    free: tuple[Ints, Ints, Ints, Floats, Ints]
    room: Ints
    counts: Records
    ended: Records
    used: Floats


@compiled
def arrive(state, coming, number, now_s):  # type: ignore[no-untyped-def]
    """A job comes, and waits; there has to be a row for it, and room for a note. Returns its row.

    Parameters
    ----------
    coming, number : a table whose row of this number says what is known of it, and where all else is 0.
    """
    table, counts = state.table, state.counts[0]
    job_s = _count(state, now_s)
    row = state.unused[len(table) - counts.active - 1]
    table[row] = coming[number]
    table.serial[row], table.best_rate[row], table.job_s[row] = counts.entered, table.gang_rate[row], job_s
    table.waiting_since_s[row], table.first_start_s[row], table.finish_s[row] = now_s, np.nan, np.inf
    state.rows[counts.active] = row
    counts.active += 1
    counts.entered += 1
    counts.waiting += 1
    note_use(state, now_s)
    return row


@lean
def end(state, row, now_s):  # type: ignore[no-untyped-def]
    """A job has done its work; there has to be room for notes."""
    table, counts = state.table, state.counts[0]
    change_holding(row, -1, state)
    _release(table, row, now_s)
    note_use(state, now_s)
    note = state.ended[counts.ended]
    counts.ended += 1
    note.serial, note.allowed, note.end_s = table.serial[row], table.allowed[row], now_s
    note.num_preempted, note.num_starts = table.num_preempted[row], table.num_starts[row]
    note.first_start_s, note.waited_s = table.first_start_s[row], table.waited_s[row]
    note.lost_s, note.lost_device_s = table.lost_s[row], table.lost_device_s[row]
    note.device_s, note.job_s = table.attained_device_s[row], _count(state, now_s) - table.job_s[row]
    _remove(state, row)


@lean
def leave(state, row, now_s):  # type: ignore[no-untyped-def]
    """A job that waits goes for good."""
    _count(state, now_s)
    _remove(state, row)
    state.counts[0].waiting -= 1


@lean
def _count(state, now_s):  # type: ignore[no-untyped-def]
    """Jobs times time until now, before their number changes."""
    counts = state.counts[0]
    counts.job_s += counts.active * (now_s - counts.counted_s)
    counts.counted_s = now_s
    return counts.job_s


@lean
def _remove(state, row):  # type: ignore[no-untyped-def]
    rows, counts, place = state.rows, state.counts[0], 0
    while rows[place] != row:
        place += 1
    # One by one, since Numba makes a copy first where slices overlap.
    later = rows[place : counts.active]
    for i in range(len(later) - 1):
        later[i] = later[i + 1]
    counts.active -= 1
    state.unused[len(state.table) - counts.active - 1] = row


@lean
def note_use(state, now_s):  # type: ignore[no-untyped-def]
    """Devices in use and jobs that wait from now on; what did not change is not noted, and one moment is noted once."""
    counts, used = state.counts[0], state.used
    in_use, last = state.room.sum() - state.free[2].sum(), counts.used - 1
    if last >= 0 and used[1, last] == in_use and used[2, last] == counts.waiting:
        return
    if last < 0 or used[0, last] != now_s:
        counts.used += 1
        last += 1
    used[0, last], used[1, last], used[2, last] = now_s, in_use, counts.waiting


@compiled
def start(state, rows, devices, sizes, now_s, pauses_s):  # type: ignore[no-untyped-def]
    """Jobs have devices, or others than they had; there has to be room to write these down.

    Parameters
    ----------
    devices, sizes : those of the first job, then those of the second, and so on; and how many each has.
    pauses_s : time without work for a job that starts for the first time, and for one that starts again.

    Returns
    -------
    Whether it is known how fast all of them run: each on its gang, wherever that is.
    """
    table, counts = state.table, state.counts[0]
    state.written[counts.written : counts.written + len(devices)] = devices
    known, first = True, 0
    for i in range(len(rows)):
        row = rows[i]
        if table.held[row]:
            settle(table, row, now_s)
        else:
            counts.waiting -= 1
            table.waited_s[row] += now_s - table.waiting_since_s[row]
        pause_s = pauses_s[1]
        if np.isnan(table.first_start_s[row]):
            table.first_start_s[row] = now_s
            pause_s = pauses_s[0]
        table.held[row], table.held_type[row] = sizes[i], state.kind_of[devices[first]]
        table.first_device[row] = counts.written + first
        first += sizes[i]
        table.num_starts[row] += 1
        table.placed_s[row] = table.attained_until_s[row] = now_s
        table.since_s[row] = table.began_s[row] = now_s + pause_s
        rate = table.gang_rate[row]
        if np.isnan(rate) or sizes[i] != table.num_devices[row]:
            rate, known = 0.0, False
        run(table, row, rate)
    counts.written += len(devices)
    return known


@lean
def run(table, row, rate):  # type: ignore[no-untyped-def]
    """A job, settled until now, works at this rate from here on."""
    table.rate[row] = rate
    left = table.left[row] - table.turn[row]
    table.finish_s[row] = table.since_s[row] + left / rate if rate > 0 else np.inf


@lean
def settle(table, row, now_s):  # type: ignore[no-untyped-def]
    """Write down what a running job has done until now."""
    had_s = now_s - table.attained_until_s[row]
    table.attained_s[row] += had_s
    table.attained_device_s[row] += had_s * table.held[row]
    lost_s = max(0.0, min(now_s, table.began_s[row]) - table.attained_until_s[row])
    table.lost_s[row] += lost_s
    table.lost_device_s[row] += lost_s * table.held[row]
    if now_s > table.since_s[row]:
        done = (now_s - table.since_s[row]) * table.rate[row]
        table.left[row] = max(0.0, table.left[row] - done)
        table.since_s[row] = now_s
    table.attained_until_s[row] = now_s


@lean
def give_back(state, rows):  # type: ignore[no-untyped-def]
    """Devices of jobs are free again; in the table the jobs are as they were until they have others, or wait."""
    for row in rows:
        change_holding(row, -1, state)


@lean
def wait(state, rows, now_s):  # type: ignore[no-untyped-def]
    """Jobs whose devices were given back wait."""
    for row in rows:
        _release(state.table, row, now_s)
        state.table.num_preempted[row] += 1
        state.counts[0].waiting += 1


@lean
def _release(table, row, now_s):  # type: ignore[no-untyped-def]
    settle(table, row, now_s)
    table.held[row], table.rate[row] = 0, 0.0
    table.finish_s[row], table.waiting_since_s[row] = np.inf, now_s
