"""From a queue to jobs that run, where some lose what they have."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy import empty, int64
from numpy.typing import NDArray

from trainyard.compiling import compiled
from trainyard.fleet.allocation import Queue
from trainyard.fleet.jobs.job_facts import needs_of_rows
from trainyard.fleet.mechanism.preempt import GETS, LOSES, assign
from trainyard.fleet.mechanism.transitions import FleetState, note_use, start, wait
from trainyard.fleet.place.find import place_jobs
from trainyard.fleet.place.grants import Laid
from trainyard.fleet.place.nodes import ANYWHERE, CONSOLIDATED

Ints = NDArray[np.int64]

_NONE = np.zeros(0, np.int64)
_NO_NODES = np.zeros((0, 0), np.int64)


class QueueArrays(NamedTuple):
    """A policy's queue as arrays in the order of urgency; an empty array stands for the default.

    Attributes
    ----------
    order : numbers of the jobs.
    counts, kinds : devices of each, and the index of their type.
    hows : placement of each; -1 for that of the run.
    on_nodes : devices that each is to have of every node, a row each; all 0 where the placement decides.
    """

    order: Ints
    counts: Ints
    kinds: Ints
    hows: Ints
    on_nodes: Ints

    @classmethod
    def of(cls, queue: Queue) -> QueueArrays:
        """The columns of a queue."""
        order = np.asarray(queue.order, np.int64)
        counts = _NONE if queue.num_devices is None else np.asarray(queue.num_devices, np.int64)
        kinds = _NONE if queue.device_type is None else np.asarray(queue.device_type, np.int64)
        hows = _NONE
        if queue.consolidate is not None:
            hows = np.array((ANYWHERE, CONSOLIDATED, -1))[np.asarray(queue.consolidate, np.int64)]
        on_nodes = _NO_NODES if queue.on_nodes is None else np.ascontiguousarray(queue.on_nodes, np.int64)
        return cls(order, counts, kinds, hows, on_nodes)


class Assignment(NamedTuple):
    """Devices for jobs.

    Attributes
    ----------
    places : of the jobs that get devices or others, in the order of urgency.
    given : their devices.
    leaving, stopping : rows of the jobs that lose devices, and of those among them that get no others.
    """

    places: Ints
    given: Laid
    leaving: Ints
    stopping: Ints


def assignment(state: FleetState, rows: Ints, asked: QueueArrays, how: int, backfill: bool) -> Assignment:
    """Give devices back and take others; in the job table jobs have what they had.

    Parameters
    ----------
    rows : of the snapshot that the order is of.
    how : placement of jobs for which none is named.
    backfill : whether a job may run before one that is more urgent and does not fit.
    """
    places, devices, sizes, outcome = assign(asked, rows, state, how, backfill)
    return Assignment(places, Laid(devices, sizes), *_losing(rows, outcome, state.table))


class QueueChanges(NamedTuple):
    """Changes of devices after a queue was carried out.

    Attributes
    ----------
    started, places : rows of the jobs that got devices, or others than they had, and their places in the order.
    leaving : rows of the jobs that lost devices, also where they got others.
    known : whether it is known how fast all run that started: each on its gang, wherever that is.
    """

    started: Ints
    places: Ints
    leaving: Ints
    known: bool


class QueueRules(NamedTuple):
    """Rules by which a queue is brought about.

    Attributes
    ----------
    preempts : whether devices may be taken from jobs that run.
    how : placement of jobs for which none is named.
    backfill, one_queue : as in `Queue`.
    pauses_s : as for `start`.
    """

    preempts: bool
    how: int
    backfill: bool
    one_queue: bool
    pauses_s: tuple[float, float]


def apply_queue(
    state: FleetState, rows: Ints, asked: QueueArrays, rules: QueueRules, now_s: float
) -> QueueChanges:
    """Find out who gets and who loses devices, and write all that down, in one compiled call.

    To call a compiled function for each of these takes longer than what it does, and policies that look at the jobs again
    and again decide most often.

    Parameters
    ----------
    rows : of the snapshot that the order is of.
    """
    # To return an array takes far longer than to write to one.
    found = np.empty((3, max(len(asked.order), len(rows))), np.int64)
    num_started, num_leaving, known = _apply_queue(state, rows, asked, rules, now_s, found)
    return QueueChanges(found[0, :num_started], found[1, :num_started], found[2, :num_leaving], known)


@compiled
def _apply_queue(state, rows, asked, rules, now_s, found):  # type: ignore[no-untyped-def]
    started, places, leaving, known = queue_applied(state, rows, asked, rules, now_s)
    note_use(state, now_s)
    found[0, : len(started)], found[1, : len(started)], found[2, : len(leaving)] = started, places, leaving
    return len(started), len(leaving), known


@compiled
def queue_applied(state, rows, asked, rules, now_s):  # type: ignore[no-untyped-def]
    """`apply_queue`, for compiled functions; returns what `QueueChanges` has."""
    leaving = empty(0, int64)
    if rules.preempts:
        places, given, sizes, outcome = assign(asked, rows, state, rules.how, rules.backfill)
        leaving, stopped = _losing(rows, outcome, state.table)
        wait(state, stopped, now_s)
    else:
        places, given, sizes = fill(state, rows, asked, rules.how, rules.backfill, rules.one_queue)
    started = rows[asked.order[places]]
    known = start(state, started, given, sizes, now_s, rules.pauses_s)
    state.table.has_auxiliary[started] = state.free[3].shape[1] > 0
    return started, places, leaving, known


@compiled
def _losing(rows, outcome, table):  # type: ignore[no-untyped-def]
    """Rows of the jobs that lose devices, and of those among them that get no others."""
    leaving, stopped = empty(len(rows), int64), empty(len(rows), int64)
    num_leaving = num_stopped = 0
    for number in range(len(rows)):
        if outcome[number] == LOSES or (outcome[number] == GETS and table[rows[number]].held > 0):
            leaving[num_leaving] = rows[number]
            num_leaving += 1
            if outcome[number] == LOSES:
                stopped[num_stopped] = rows[number]
                num_stopped += 1
    return leaving[:num_leaving], stopped[:num_stopped]


@compiled
def fill(state, rows, asked, how, backfill, one_queue):  # type: ignore[no-untyped-def]
    """Jobs that wait take devices that are free, most urgent first; one that finds no place waits.

    Parameters
    ----------
    rows : of the snapshot that the order is of, which all wait.
    one_queue : without ``backfill``, whether who finds no place holds up all that come after it.

    Returns
    -------
    Places in the order of the jobs that get devices; these, and how many each gets.
    """
    order, counts, kinds, hows, on_nodes = asked
    table, (_, _, by_type, aux, members) = state.table, state.free
    most, none, has_partitions = len(order), empty(0, int64), members.shape[0] > 1
    if not backfill and len(counts) == 0 and state.is_one_pool:
        # Every job takes a device at least, and who comes after one that finds no place is not tried.
        most = min(most, by_type.sum() + 1)
    wanted = rows[order[:most]]
    return place_jobs(
        counts[:most] if len(counts) else table.num_devices[wanted],
        kinds[:most],
        table.allowed[wanted],
        table.partition[wanted] if has_partitions else none,
        hows[:most],
        how,
        on_nodes[:most],
        backfill,
        one_queue and not backfill,
        needs_of_rows(table, wanted) if aux.shape[1] else empty((2, 0)),
        state.free,
    )
