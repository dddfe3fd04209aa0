"""Transitions of jobs and their devices: a job arrives, starts, works at a rate, loses its devices, ends or leaves.

Simulations in Python and in compiled code and runs for real all change a run's `FleetState` by these functions.
"""

from __future__ import annotations

from typing import NamedTuple, get_type_hints

import numpy as np
from numpy.typing import NDArray

from trainyard.compiling import compiled, lean
from trainyard.fleet.mechanism.preempt import change_holding
from trainyard.fleet.place.find import KIND
from trainyard.hardware.cluster import Cluster

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Records = NDArray[np.void]


class EndNote(NamedTuple):
    """Record of a job that has ended.

    Attributes
    ----------
    row : that it had; another job may have it since.
    held, first_device, placed_s : as in `JobTable`, just before it ended.
    serial, allowed, num_preempted, num_starts, gang_rate, first_start_s, waited_s, lost_s, lost_device_s, is_killed : as
        in `JobTable`.
    device_s : devices times time that it had.
    job_s : jobs times time, over all jobs, while it was there.
    """

    row: int
    held: int
    first_device: int
    placed_s: float
    serial: int
    allowed: int
    num_preempted: int
    num_starts: int
    gang_rate: float
    first_start_s: float
    end_s: float
    waited_s: float
    lost_s: float
    device_s: float
    lost_device_s: float
    job_s: float
    is_killed: int


ENDED = np.dtype(list(get_type_hints(EndNote).items()), align=True)


class FleetState(NamedTuple):
    """The jobs of a run and its devices, as compiled functions take them.

    Attributes
    ----------
    table : a row for every job that is there, and rows for more.
    rows : of the jobs that are there, in the order of their arrival, and then those that nobody has, the next one first.
    written : devices of all jobs, and some that jobs had before.
    free : the tables of `FreeDevices`.
    partitions, is_one_pool : `Cluster.partition_table` and `Cluster.is_one_pool` of the nodes that are decided on. The
        table is one array, because each further array makes every call of compiled code longer.
    num_devices : of the whole cluster, that can be used now.
    counts : one of `COUNTS`.
    ended, used : room for notes: of jobs that end, as in `EndNote`; of devices in use and jobs that wait, as in `Series`.
    """

    table: Records
    rows: Ints
    written: Ints
    free: tuple[Ints, Ints, Ints, Floats, Ints]
    partitions: Ints
    is_one_pool: bool
    num_devices: int
    counts: Records
    ended: Records
    used: Floats

    def of(self, cluster: Cluster) -> FleetState:
        """Return the state for a decision on the nodes of a cluster that is a part of this one."""
        if cluster.partition_table is self.partitions:
            return self
        return self._replace(
            free=(*self.free[:4], cluster.members),
            partitions=cluster.partition_table,
            is_one_pool=cluster.is_one_pool,
        )


@lean
def arrive(state, coming, number, now_s):  # type: ignore[no-untyped-def]
    """A job comes, and waits; there has to be a row for it, and room for a note. Returns its row.

    Parameters
    ----------
    coming, number : a table whose row of this number says what is known of it, and where all else is 0.
    """
    table, counts = state.table, state.counts[0]
    job_s = _count(state, now_s)
    row = state.rows[counts.active]
    table[row] = coming[number]
    job = table[row]
    job.serial, job.best_rate, job.job_s = counts.entered, job.gang_rate, job_s
    job.waiting_since_s, job.first_start_s = now_s, np.nan
    job.finish_s = job.lease_until_s = np.inf
    counts.active += 1
    counts.entered += 1
    counts.waiting += 1
    note_use(state, now_s)
    return row


@lean
def end(state, row, now_s):  # type: ignore[no-untyped-def]
    """A job has done its work, or its time is up; there has to be room for notes."""
    table, job, counts = state.table, state.table[row], state.counts[0]
    note = state.ended[counts.ended]
    counts.ended += 1
    note.row, note.held, note.first_device, note.placed_s = row, job.held, job.first_device, job.placed_s
    change_holding(row, -1, state)
    _release(table, row, now_s)
    note_use(state, now_s)
    note.serial, note.allowed, note.end_s = job.serial, job.allowed, now_s
    note.num_preempted, note.num_starts = job.num_preempted, job.num_starts
    note.gang_rate, note.first_start_s, note.waited_s = job.gang_rate, job.first_start_s, job.waited_s
    note.lost_s, note.lost_device_s = job.lost_s, job.lost_device_s
    note.is_killed = job.is_killed
    note.device_s, note.job_s = job.attained_device_s, _count(state, now_s) - job.job_s
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
    rows[counts.active] = row


@lean
def note_use(state, now_s):  # type: ignore[no-untyped-def]
    """Devices in use and jobs that wait from now on; what did not change is not noted, and one moment is noted once."""
    counts, used = state.counts[0], state.used
    in_use, last = state.num_devices - state.free[2].sum(), counts.used - 1
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
    table, counts, kind_of = state.table, state.counts[0], state.free[0][KIND]
    state.written[counts.written : counts.written + len(devices)] = devices
    known, first = True, 0
    for i in range(len(rows)):
        row = rows[i]
        job = table[row]
        if job.held:
            settle(table, row, now_s)
        else:
            counts.waiting -= 1
            job.waited_s += now_s - job.waiting_since_s
        pause_s = pauses_s[1]
        if np.isnan(job.first_start_s):
            job.first_start_s = now_s
            pause_s = pauses_s[0]
        job.held, job.held_type = sizes[i], kind_of[devices[first]]
        job.first_device = counts.written + first
        first += sizes[i]
        job.num_starts += 1
        job.placed_s = job.attained_until_s = now_s
        job.since_s = job.began_s = now_s + pause_s
        rate = job.gang_rate
        if np.isnan(rate) or sizes[i] != job.num_devices:
            rate, known = 0.0, False
        run(table, row, rate)
    counts.written += len(devices)
    return known


@lean
def run(table, row, rate):  # type: ignore[no-untyped-def]
    """A job, settled until now, works at this rate from here on."""
    job = table[row]
    job.rate = rate
    left = job.left - job.turn
    job.finish_s = job.since_s + left / rate if rate > 0 else np.inf
    killed_s = job.attained_until_s + max(0.0, job.killed_after_s - job.attained_s)
    job.is_killed = 1 if killed_s < job.finish_s else 0
    job.finish_s = min(job.finish_s, killed_s)


@lean
def settle(table, row, now_s):  # type: ignore[no-untyped-def]
    """Write down what a running job has done until now."""
    job = table[row]
    had_s = now_s - job.attained_until_s
    job.attained_s += had_s
    job.attained_device_s += had_s * job.held
    lost_s = max(0.0, min(now_s, job.began_s) - job.attained_until_s)
    job.lost_s += lost_s
    job.lost_device_s += lost_s * job.held
    if now_s > job.since_s:
        done = (now_s - job.since_s) * job.rate
        job.left = max(0.0, job.left - done)
        job.since_s = now_s
    job.attained_until_s = now_s


@lean
def run_until(table, row, rate, left):  # type: ignore[no-untyped-def]
    """The same of a job that changes its rate by itself, when so much work is left."""
    table[row].turn = left
    run(table, row, rate)


@lean
def stretch_start(table, row, now_s, times):  # type: ignore[no-untyped-def]
    """Make the rest of a job's start take so many times as long."""
    job = table[row]
    if job.since_s > now_s:
        job.since_s = job.began_s = now_s + (job.since_s - now_s) * times


@lean
def delay_start(table, row, more_s):  # type: ignore[no-untyped-def]
    """A job that does no work yet begins to later."""
    job = table[row]
    job.since_s += more_s
    job.began_s = job.since_s
    run(table, row, job.rate)


@lean
def set_back(table, row, work, unsaved_s, now_s, restart_s):  # type: ignore[no-untyped-def]
    """A running job loses the work of the last ``unsaved_s`` seconds, and time to restart.

    Parameters
    ----------
    work : all that the job has to do.
    """
    settle(table, row, now_s)
    job = table[row]
    job.left = min(work, job.left + unsaved_s * job.rate)
    job.lost_s += unsaved_s
    job.lost_device_s += unsaved_s * job.held
    job.since_s = job.began_s = max(job.since_s, now_s) + restart_s
    run(table, row, job.rate)


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
        state.table[row].num_preempted += 1
        state.counts[0].waiting += 1


@lean
def _release(table, row, now_s):  # type: ignore[no-untyped-def]
    settle(table, row, now_s)
    job = table[row]
    job.held, job.rate = 0, 0.0
    job.finish_s = job.lease_until_s = np.inf
    job.waiting_since_s = now_s
