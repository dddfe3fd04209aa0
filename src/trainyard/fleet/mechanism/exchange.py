"""From targets to jobs that run, where some lose what they have."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy import empty, int64
from numpy.typing import NDArray

from trainyard.compiling import compiled
from trainyard.fleet.mechanism.job_table import JobTable
from trainyard.fleet.mechanism.preempt import GETS, KEEPS, assign, change_holding
from trainyard.fleet.mechanism.transitions import release_jobs, start_jobs
from trainyard.fleet.place.free import FreeDevices
from trainyard.fleet.place.grants import Laid
from trainyard.fleet.place.nodes import ANYWHERE, CONSOLIDATED
from trainyard.fleet.policy import Targets

Ints = NDArray[np.int64]

_NONE = np.zeros(0, np.int64)


class Asked(NamedTuple):
    """What a policy that does not place for itself wants: columns in the order of urgency, empty for the usual.

    Attributes
    ----------
    order : numbers of the jobs.
    counts, kinds : devices of each, and the index of their type.
    hows : placement of each; -1 for that of the run.
    """

    order: Ints
    counts: Ints
    kinds: Ints
    hows: Ints

    @classmethod
    def of(cls, targets: Targets) -> Asked:
        """The columns of targets."""
        order = np.asarray(targets.order, np.int64)
        counts = _NONE if targets.num_devices is None else np.asarray(targets.num_devices, np.int64)
        kinds = _NONE if targets.device_type is None else np.asarray(targets.device_type, np.int64)
        hows = _NONE
        if targets.consolidate is not None:
            hows = np.array((ANYWHERE, CONSOLIDATED, -1))[np.asarray(targets.consolidate, np.int64)]
        return cls(order, counts, kinds, hows)


class Exchanged(NamedTuple):
    """What an exchange brought about.

    Attributes
    ----------
    started, places : rows of the jobs that got devices, and their places in the order of urgency.
    leaving : rows of the jobs that lost devices, also where they got others.
    num_stopped : how many more jobs wait than before; negative for fewer.
    known : whether it is known how fast all run that started: each on its gang, wherever that is.
    """

    started: Ints
    places: Ints
    leaving: Ints
    num_stopped: int
    known: bool


class Assignment(NamedTuple):
    """Who is to have which devices.

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


def assignment(
    books: JobTable, free: FreeDevices, rows: Ints, asked: Asked, how: int, room: Ints, backfill: bool
) -> Assignment:
    """Give devices back and take others; on the books jobs have what they had.

    Parameters
    ----------
    rows : of the snapshot that the order is of.
    how : placement of jobs for which none is named.
    room : devices of every pool that can be given out.
    backfill : whether a job may run before one that is more urgent and does not fit.
    """
    places, devices, sizes, outcome = assign(
        *asked, rows, books.data, books.grants.devices, free.tables, room, how, backfill
    )
    free.total = int(free.by_type.sum())
    had = books.held[rows] > 0
    leaving, stopping = had & (outcome != KEEPS), had & (outcome != KEEPS) & (outcome != GETS)
    return Assignment(places, Laid(devices, sizes), rows[leaving], rows[stopping])


def exchange(
    books: JobTable,
    free: FreeDevices,
    rows: Ints,
    targets: Targets,
    how: int,
    room: Ints,
    now_s: float,
    pauses_s: tuple[float, float],
) -> Exchanged:
    """Find out who gets and who loses devices, and write all that down, in one compiled call.

    To call a compiled function for each of these takes longer than what it does, and policies that look at the jobs again
    and again decide most often.

    Parameters
    ----------
    rows, how, room : as for `assignment`.
    pauses_s : as for `JobTable.start`.
    """
    asked = Asked.of(targets)
    written, used = books.grants.room(len(free.kind_of), books.active)
    # To return an array takes far longer than to write to one.
    found = np.empty((3, max(len(asked.order), len(rows))), np.int64)
    num_started, num_leaving, num_given, num_freed, num_stopped, known = _exchange(
        *asked, rows, books.data, written, free.kind_of, free.tables, room, how, targets.backfill, used, now_s,
        pauses_s, found,
    )  # fmt: skip
    started, places, leaving = found[0, :num_started], found[1, :num_started], found[2, :num_leaving]
    books.grants.fill(num_given)
    books.forget(leaving)
    free.total += num_freed
    return Exchanged(started, places, leaving, num_stopped, known)


def give_back(books: JobTable, free: FreeDevices, rows: Ints) -> None:
    """Devices of jobs are free again; on the books they still have them."""
    free.total += _give_back(rows, books.data, books.grants.devices, free.tables)


@compiled
def _give_back(rows, table, written, tables):  # type: ignore[no-untyped-def]
    num_freed = 0
    for row in rows:
        num_freed += change_holding(row, -1, table, written, tables)
    return num_freed


@compiled
def _exchange(  # type: ignore[no-untyped-def]
    order, counts, kinds, hows, rows, table, written, kind_of, tables, room, how, backfill, used, now_s, pauses_s,
    found,
):  # fmt: skip
    started, places, leaving, num_given, num_freed, num_stopped, known = exchanged(
        order, counts, kinds, hows, rows, table, written, kind_of, tables, room, how, backfill, used, now_s,
        pauses_s,
    )  # fmt: skip
    found[0, : len(started)], found[1, : len(started)], found[2, : len(leaving)] = started, places, leaving
    return len(started), len(leaving), num_given, num_freed, num_stopped, known


@compiled
def exchanged(  # type: ignore[no-untyped-def]
    order,
    counts,
    kinds,
    hows,
    rows,
    table,
    written,
    kind_of,
    tables,
    room,
    how,
    backfill,
    used,
    now_s,
    pauses_s,
):
    """`exchange`, for compiled functions.

    Returns
    -------
    What `Exchanged` has first; then how many devices were given, and are free that were not; then the rest of it.
    """
    held, total = table.held, tables[2].sum()
    places, given, sizes, outcome = assign(
        order, counts, kinds, hows, rows, table, written, tables, room, how, backfill
    )
    started, leaving, stopped = rows[order[places]], empty(len(rows), int64), empty(len(rows), int64)
    num_leaving = num_stopped = 0
    for number in range(len(rows)):
        if held[rows[number]] > 0 and outcome[number] != KEEPS:
            leaving[num_leaving] = rows[number]
            num_leaving += 1
            if outcome[number] != GETS:
                stopped[num_stopped] = rows[number]
                num_stopped += 1
    release_jobs(table, stopped[:num_stopped], now_s, True)
    waited, known = start_jobs(table, started, given, sizes, kind_of, written, used, now_s, pauses_s)
    table.has_auxiliary[started] = tables[3].shape[1] > 0
    num_freed = tables[2].sum() - total
    return started, places, leaving[:num_leaving], len(given), num_freed, num_stopped - waited, known
