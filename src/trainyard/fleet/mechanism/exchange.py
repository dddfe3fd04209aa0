"""From targets to jobs that run, where some lose what they have: the walk down the order of urgency, and the exchange."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy import concatenate, empty, int64, zeros
from numpy.typing import NDArray

from trainyard.compiling import compiled
from trainyard.fleet.mechanism.books import Books
from trainyard.fleet.mechanism.columns import (
    ALLOWED,
    FIRST_DEVICE,
    HELD,
    HELD_TYPE,
    NUM_DEVICES,
    release_jobs,
    start_jobs,
)
from trainyard.fleet.place.free import FreeDevices, change_tenants, place_jobs
from trainyard.fleet.place.grants import devices_of
from trainyard.fleet.place.nodes import ANYWHERE, CONSOLIDATED
from trainyard.fleet.place.pools import pool_for
from trainyard.fleet.policy import Targets

Ints = NDArray[np.int64]

_NONE = np.zeros(0, np.int64)


class Asked(NamedTuple):
    """What a policy that does not place for itself wants: columns in the order of urgency, empty for the usual.

    Attributes
    ----------
    order : numbers of the jobs.
    counts, kinds : devices of each, and the index of their type.
    hows : placement of each.
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
            hows = np.where(targets.consolidate, CONSOLIDATED, ANYWHERE)
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


def walk(books: Books, rows: Ints, asked: Asked, room: Ints, backfill: bool) -> tuple[Ints, Ints]:
    """Which jobs get devices, or other ones, and which lose theirs.

    Parameters
    ----------
    rows : of the snapshot that the order is of.
    room : devices of every pool that can be given out.
    backfill : whether a job may run before one that is more urgent and does not fit.

    Returns
    -------
    Places in the order of the jobs that fit and do not have what they are to have, most urgent first; rows of the jobs
    that run and do not fit.
    """
    order, counts, kinds, _ = asked
    starting, stopping = _walk(order, counts, kinds, rows, books.blocks[1], room, backfill)
    return starting, stopping


def exchange(
    books: Books,
    free: FreeDevices,
    rows: Ints,
    targets: Targets,
    how: int,
    room: Ints,
    now_s: float,
    pauses_s: tuple[float, float],
) -> Exchanged:
    """Walk, take devices away, place who is to have some or others, and write all that down, in one compiled call.

    To call a compiled function for each of these takes longer than what it does, and policies that look at the jobs again
    and again decide most often.

    Parameters
    ----------
    rows, room : as for `walk`.
    how : placement of jobs for which the targets name none.
    pauses_s : as for `Books.start`.
    """
    asked = Asked.of(targets)
    written, used = books.grants.room(len(free.kind_of), books.active)
    tables = *books.blocks, written, free.kind_of, *free.tables
    # To return an array takes far longer than to write to one.
    found = np.empty((3, max(len(asked.order), len(rows))), np.int64)
    num_started, num_leaving, num_given, num_freed, num_stopped, known = _exchange(
        *asked, rows, *tables, room, how, targets.backfill, used, now_s, pauses_s, found
    )
    started, places, leaving = found[0, :num_started], found[1, :num_started], found[2, :num_leaving]
    books.grants.fill(num_given)
    books.forget(leaving)
    free.total += num_freed
    return Exchanged(started, places, leaving, num_stopped, known)


def give_back(books: Books, free: FreeDevices, rows: Ints) -> None:
    """Devices of jobs are free again; on the books they still have them."""
    free.total += _give_back(rows, books.blocks[1], books.grants.devices, *free.tables)


@compiled
def _give_back(rows, whole, written, per_device, per_node, by_type):  # type: ignore[no-untyped-def]
    devices = devices_of(rows, whole[FIRST_DEVICE], whole[HELD], written)
    return change_tenants(devices, -1, per_device, per_node, by_type)


@compiled
def _walk(order, counts, kinds, rows, whole, room, backfill):  # type: ignore[no-untyped-def]
    asked, held, held_type, allowed = whole[NUM_DEVICES], whole[HELD], whole[HELD_TYPE], whole[ALLOWED]
    left = room.copy()
    total = left.sum()
    runs = zeros(len(rows), int64)
    starting, stopping = empty(len(order), int64), empty(len(rows), int64)
    num_starting = num_stopping = 0
    for i in range(len(order)):
        if total == 0:
            break
        row = rows[order[i]]
        n = counts[i] if len(counts) else asked[row]
        if n == 0:
            continue
        kind = kinds[i] if len(kinds) else -1
        pool = pool_for(left, n, kind, allowed[row])
        if pool >= 0:
            left[pool] -= n
            total -= n
            runs[order[i]] = 1
            if held[row] != n or (kind >= 0 and held_type[row] != kind):
                starting[num_starting] = i
                num_starting += 1
        elif not backfill:
            break
    for number in range(len(rows)):
        if not runs[number] and held[rows[number]] > 0:
            stopping[num_stopping] = rows[number]
            num_stopping += 1
    return starting[:num_starting], stopping[:num_stopping]


@compiled
def _exchange(  # type: ignore[no-untyped-def]
    order, counts, kinds, hows, rows, real, whole, written, kind_of, per_device, per_node, by_type,
    room, how, backfill, used, now_s, pauses_s, found,
):  # fmt: skip
    started, places, leaving, num_given, num_freed, num_stopped, known = exchanged(
        order, counts, kinds, hows, rows, real, whole, written, kind_of, per_device, per_node, by_type,
        room, how, backfill, used, now_s, pauses_s,
    )  # fmt: skip
    found[0, : len(started)], found[1, : len(started)], found[2, : len(leaving)] = started, places, leaving
    return len(started), len(leaving), num_given, num_freed, num_stopped, known


@compiled
def exchanged(  # type: ignore[no-untyped-def]
    order, counts, kinds, hows, rows, real, whole, written, kind_of, per_device, per_node, by_type,
    room, how, backfill, used, now_s, pauses_s,
):  # fmt: skip
    """`exchange`, for compiled functions.

    Returns
    -------
    What `Exchanged` has first; then how many devices were given, and are free that were not; then the rest of it.
    """
    held, total = whole[HELD], by_type.sum()
    starting, stopping = _walk(order, counts, kinds, rows, whole, room, backfill)
    wanted = rows[order[starting]]
    leaving = concatenate((stopping, wanted[held[wanted] > 0]))
    _give_back(leaving, whole, written, per_device, per_node, by_type)
    sizes = counts[starting] if len(counts) else whole[NUM_DEVICES][wanted]
    kinds = kinds[starting] if len(kinds) else kinds
    hows = hows[starting] if len(hows) else hows
    numbers, given, sizes = place_jobs(
        sizes, kinds, whole[ALLOWED][wanted], hows, how, backfill, per_device, per_node, by_type
    )
    started = wanted[numbers]
    wanted[numbers] = -1
    unplaced = wanted[wanted >= 0]
    stopped = concatenate((stopping, unplaced[held[unplaced] > 0]))
    release_jobs(real, whole, stopped, now_s, True)
    waited, known = start_jobs(real, whole, started, given, sizes, kind_of, written, used, now_s, pauses_s)
    num_freed, num_stopped = by_type.sum() - total, len(stopped) - waited
    return started, starting[numbers], leaving, len(given), num_freed, num_stopped, known
