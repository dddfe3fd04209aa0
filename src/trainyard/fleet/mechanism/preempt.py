"""Who gets devices and who loses them, where more urgent jobs may take them from less urgent ones.

First the order of urgency is walked by number: every job that fits beside those before it is to run, whoever does not
loses what it has. In most decisions all that are to run then find a place, and nobody else can run. Where one finds none,
as under a placement that keeps jobs on few nodes, it takes devices of less urgent jobs that run, of the least urgent that
will do; and what is left over is for those after it.
"""

from __future__ import annotations

from numpy import empty, int64, zeros

from trainyard.compiling import compiled
from trainyard.fleet.mechanism.columns import (
    ALLOWED,
    FIRST_DEVICE,
    HAS_SHARE,
    HELD,
    HELD_TYPE,
    NEEDS,
    NUM_DEVICES,
)
from trainyard.fleet.place.free import (
    are_held,
    are_in_racks,
    change_free,
    change_tenants,
    find_place,
    fits_on,
    hold,
    is_known,
    nodes_of,
    not_closed,
    note,
    place_jobs,
    shift_devices,
    take,
)
from trainyard.fleet.place.pools import pool_for

# What becomes of a job: it has no devices and gets none; it keeps those that it has; loses them; gets some or others.
WAITS, KEEPS, LOSES, GETS = range(4)


@compiled
def assign(  # type: ignore[no-untyped-def]
    order, counts, kinds, hows, rows, real, whole, written, tables, room, how, backfill
):
    """Find out who gets which devices; these are taken and given back, but nothing is written down of the jobs.

    Parameters
    ----------
    order, counts, kinds, hows : columns of `Asked`.
    rows : of the snapshot that the order is of.
    real, whole, written : of the books, and the devices of all jobs.
    tables : of `FreeDevices`.
    room : devices of every pool that can be given out.
    how : placement of jobs for which ``hows`` names none, or -1.
    backfill : whether a job may run before one that is more urgent and does not fit.

    Returns
    -------
    Places in the order of the jobs that get devices, most urgent first; their devices, and how many each gets; and what
    becomes of every job.
    """
    starting, fate = _walk(order, counts, kinds, rows, whole, room, backfill)
    for number in range(len(rows)):
        if fate[number] == LOSES:
            change_holding(rows[number], -1, real, whole, written, tables)
    wanted = rows[order[starting]]
    sizes = counts[starting] if len(counts) else whole[NUM_DEVICES][wanted]
    own_kinds = kinds[starting] if len(kinds) else kinds
    own_hows = hows[starting] if len(hows) else hows
    needs = real[NEEDS][:, wanted] if tables[3].shape[1] else empty((2, 0))
    numbers, devices, sizes = place_jobs(
        sizes, own_kinds, whole[ALLOWED][wanted], own_hows, how, True, True, needs, *tables
    )
    for number in numbers:
        fate[order[starting[number]]] = GETS
    num_placed, first = len(numbers), 0
    # Of several types, a job may lie on another than it was counted on: then all are looked at once more.
    if len(room) == 1 or tables[2].sum() == 0:
        if num_placed == len(starting):
            return starting, devices, sizes, fate
        first = starting[num_placed] if len(room) == 1 else 0
    asked = order, counts, kinds, hows
    books = real, whole, written
    found = starting[:num_placed], devices, sizes
    return _assign_on(first, found, fate, asked, rows, books, tables, room, how, backfill)


@compiled
def change_holding(row, change, real, whole, written, tables):  # type: ignore[no-untyped-def]
    """A job takes the devices that it has (1), and what comes with them, or gives them back (-1)."""
    per_device, per_node, by_type, beside = tables
    devices = devices_held(row, whole, written)
    if whole[HAS_SHARE, row]:
        hold(nodes_of(devices, per_device, per_node.shape[1]), real[NEEDS, row], -change, beside)
    return change_tenants(devices, change, per_device, per_node, by_type)


@compiled
def devices_held(row, whole, written):  # type: ignore[no-untyped-def]
    """The devices of a job."""
    return written[whole[FIRST_DEVICE, row] : whole[FIRST_DEVICE, row] + whole[HELD, row]]


@compiled
def _walk(order, counts, kinds, rows, whole, room, backfill):  # type: ignore[no-untyped-def]
    """By number alone: places of the jobs that are to get devices or others, and what becomes of each."""
    asked, held, held_type, allowed = whole[NUM_DEVICES], whole[HELD], whole[HELD_TYPE], whole[ALLOWED]
    left, closed = room.copy(), 0
    total = left.sum()
    starting, fate = empty(len(order), int64), zeros(len(rows), int64)
    num_starting = 0
    for number in range(len(rows)):
        if held[rows[number]] > 0:
            fate[number] = LOSES
    for i in range(len(order)):
        if total == 0:
            break
        row = rows[order[i]]
        n = counts[i] if len(counts) else asked[row]
        if n == 0:
            continue
        kind = kinds[i] if len(kinds) else -1
        bits = (1 << kind if kind >= 0 else allowed[row]) & ~closed
        pool = -1
        if held[row] == n and (bits >> held_type[row]) & 1:
            pool = pool_for(left, n, held_type[row], bits)
        if pool < 0:
            pool = pool_for(left, n, -1, bits)
        if pool >= 0:
            left[pool] -= n
            total -= n
            if held[row] == n and held_type[row] == pool:
                fate[order[i]] = KEEPS
            else:
                starting[num_starting] = i
                num_starting += 1
        elif not backfill:
            closed |= bits
            if not_closed(closed, left) == 0:
                break
    return starting[:num_starting], fate


@compiled
def _assign_on(first, found, fate, asked, rows, books, tables, room, how, backfill):  # type: ignore[no-untyped-def]
    """Go on with `assign` where not all is as by number.

    Parameters
    ----------
    first : place in the order of the first job that may not have found a place.
    found : places in the order, devices and sizes of those that have found theirs.
    asked, books : as `assign` has them.
    """
    order, counts, kinds, hows = asked
    real, whole, written = books
    per_device, per_node, by_type, beside = tables
    places, given = empty(len(order), int64), empty(room.sum(), int64)
    all_sizes = empty(len(order), int64)
    placed, count = len(found[0]), len(found[1])
    places[:placed], given[:count], all_sizes[:placed] = found
    # What is free, and what those have beside it whose turn has not come.
    nodes, types, more, last = per_node.copy(), by_type.copy(), beside.copy(), first
    for i in range(first, len(order)):
        if fate[order[i]] == KEEPS:
            _count_free(rows[order[i]], 1, real, whole, written, per_device, nodes, types, more)
        elif fate[order[i]] != GETS:
            last = i
    nowhere, closed, has_racks = zeros((3, types.sum() + 1), int64), 0, are_in_racks(per_node)
    for i in range(first, len(order)):
        if i > last or types.sum() == 0:
            break
        number = order[i]
        row = rows[number]
        if fate[number] == KEEPS:
            _count_free(row, -1, real, whole, written, per_device, nodes, types, more)
        n = counts[i] if len(counts) else whole[NUM_DEVICES, row]
        if n == 0 or fate[number] in (KEEPS, GETS):
            continue
        kind, own_how = kinds[i] if len(kinds) else -1, hows[i] if len(hows) and hows[i] >= 0 else how
        bits = (1 << kind if kind >= 0 else whole[ALLOWED, row]) & ~closed
        need = real[NEEDS, row]
        if fate[number] == LOSES and _may_stay(row, n, bits, books, tables):
            change_holding(row, 1, real, whole, written, tables)
            _count_free(row, -1, real, whole, written, per_device, nodes, types, more)
            fate[number] = KEEPS
            continue
        taken = empty(0, int64)
        if beside.shape[1] or not is_known(nowhere, n, bits, own_how):
            taken = find_place(n, bits, own_how, need, per_node, by_type, beside, has_racks)
            if len(taken) == 0:
                taken = find_place(n, bits, own_how, need, nodes, types, more, has_racks)
                if len(taken):
                    others = _less_urgent(i, order, fate)
                    taken = _of_the_least_urgent(taken, n, bits, own_how, need, others, rows, books, tables)
                    _take_away(taken, need, others, fate, rows, books, tables)
                    last = len(order) - 1
                else:
                    note(nowhere, n, bits, own_how)
        if len(taken):
            take(taken, n, given[count:], per_device, per_node, by_type)
            shift_devices(given[count : count + n], -1, per_device, nodes, types)
            if beside.shape[1]:
                hold(taken, need, -1, beside)
                hold(taken, need, -1, more)
            fate[number] = GETS
            places[placed], all_sizes[placed] = i, n
            placed, count = placed + 1, count + n
        elif not backfill:
            closed |= bits
            if not_closed(closed, types) == 0:
                break
    return places[:placed], given[:count], all_sizes[:placed], fate


@compiled
def _count_free(row, sign, real, whole, written, per_device, nodes, types, beside):  # type: ignore[no-untyped-def]
    """The devices of a job count as free (1), or no longer (-1).

    It is called for every job at most decisions, and to hand tuples of arrays over would take longer than what it does.
    """
    first = whole[FIRST_DEVICE, row]
    for place in range(first, first + whole[HELD, row]):
        change_free(written[place], sign, per_device, nodes, types)
    if whole[HAS_SHARE, row]:
        devices = devices_held(row, whole, written)
        hold(nodes_of(devices, per_device, nodes.shape[1]), real[NEEDS, row], sign, beside)


@compiled
def _may_stay(row, n, bits, books, tables):  # type: ignore[no-untyped-def]
    """Whether a job that was to lose its devices wants the same, and nobody has taken them."""
    real, whole, written = books
    per_device, per_node, _, beside = tables
    if whole[HELD, row] != n or (bits >> whole[HELD_TYPE, row]) & 1 == 0:
        return False
    devices = devices_held(row, whole, written)
    if are_held(devices, per_device):
        return False
    taken = nodes_of(devices, per_device, per_node.shape[1])
    return fits_on(taken, real[NEEDS, row], per_node, beside)


@compiled
def _less_urgent(i, order, fate):  # type: ignore[no-untyped-def]
    """Numbers of the jobs that come after a place in the order and keep what they have, the most urgent first."""
    found, num = empty(len(order) - i, int64), 0
    for number in order[i + 1 :]:
        if fate[number] == KEEPS:
            found[num] = number
            num += 1
    return found[:num]


@compiled
def _of_the_least_urgent(taken, n, bits, own_how, need, others, rows, books, tables):  # type: ignore[no-untyped-def]
    """A place for a job where as few of the others lose theirs as can be, counted from the least urgent one.

    Parameters
    ----------
    taken : where it finds one if all of them do.
    others : numbers of these, the most urgent first.
    """
    real, whole, written = books
    per_device, per_node, by_type, beside = tables
    has_racks = are_in_racks(per_node)
    enough, too_few = 0, len(others)
    while too_few - enough > 1:
        middle = (enough + too_few) // 2
        nodes, types, more = per_node.copy(), by_type.copy(), beside.copy()
        for number in others[middle:]:
            _count_free(rows[number], 1, real, whole, written, per_device, nodes, types, more)
        found = find_place(n, bits, own_how, need, nodes, types, more, has_racks)
        if len(found):
            enough, taken = middle, found
        else:
            too_few = middle
    return taken


@compiled
def _take_away(taken, need, others, fate, rows, books, tables):  # type: ignore[no-untyped-def]
    """Some of the others lose their devices, the least urgent first, until so many are free on every node."""
    real, whole, written = books
    per_device, per_node, _, beside = tables
    losers, num = empty(len(others), int64), 0
    for number in others[::-1]:
        on = nodes_of(devices_held(rows[number], whole, written), per_device, per_node.shape[1])
        if (on * taken).any():
            change_holding(rows[number], -1, real, whole, written, tables)
            fate[number] = LOSES
            losers[num] = number
            num += 1
            if fits_on(taken, need, per_node, beside):
                break
    for number in losers[:num][::-1]:  # without those that need not
        change_holding(rows[number], 1, real, whole, written, tables)
        fate[number] = KEEPS
        if not fits_on(taken, need, per_node, beside):
            change_holding(rows[number], -1, real, whole, written, tables)
            fate[number] = LOSES
