"""Allocation of devices where more urgent jobs may take them from less urgent ones.

First the order of urgency is walked by number of devices: each job that fits beside the earlier ones is to run, and a job
that does not fit loses its devices. In most decisions all jobs that are to run then find a place, and no other job can
run. A job that finds none, as under a placement that keeps jobs on few nodes, takes devices of less urgent running jobs,
of the least urgent that suffice; devices that are left over are for the jobs after it.
"""

from __future__ import annotations

from numpy import empty, int64, zeros

from trainyard.compiling import compiled, lean
from trainyard.fleet.jobs.job_facts import needs_of_rows
from trainyard.fleet.place.find import (
    FREE,
    NODE,
    TYPE,
    are_any_on,
    are_held,
    are_in_racks,
    change_auxiliary,
    change_auxiliary_with,
    change_tenants,
    count_as_taken,
    find_place,
    fits_on,
    has_failed,
    nodes_of,
    note_failed,
    nothing_failed,
    place_jobs,
    take,
    usable_nodes,
    without_nodes_of,
)
from trainyard.fleet.place.room import has_room, pool_with_room, take_room

# What becomes of a job: it has no devices and gets none; it keeps those that it has; loses them; gets some or others.
WAITS, KEEPS, LOSES, GETS = range(4)


@compiled
def assign(asked, rows, state, how, backfill):  # type: ignore[no-untyped-def]
    """Find out who gets which devices; these are taken and given back, but nothing is written down of the jobs.

    Parameters
    ----------
    asked : columns as in `QueueArrays`.
    rows : of the snapshot that the order is of.
    state : `FleetState`.
    how : placement of jobs for which none is named, or -1.
    backfill : whether a job may run before one that is more urgent and does not fit.

    Returns
    -------
    Places in the order of the jobs that get devices, most urgent first; their devices, and how many each gets; and what
    becomes of every job.
    """
    order, counts, kinds, hows, on_nodes = asked
    table, free, is_one_pool = state.table, state.free, state.is_one_pool
    starting, outcome = _walk(order, counts, kinds, rows, table, state.partitions, backfill)
    for number in range(len(rows)):
        if outcome[number] == LOSES:
            change_holding(rows[number], -1, state)
    wanted, has_partitions = rows[order[starting]], free[4].shape[0] > 1
    sizes = counts[starting] if len(counts) else table.num_devices[wanted]
    own_kinds = kinds[starting] if len(kinds) else kinds
    own_hows = hows[starting] if len(hows) else hows
    own_nodes = on_nodes[starting] if len(on_nodes) else on_nodes
    needs = needs_of_rows(table, wanted) if free[3].shape[1] else empty((2, 0))
    partitions = table.partition[wanted] if has_partitions else empty(0, int64)
    numbers, devices, sizes = place_jobs(
        sizes, own_kinds, table.allowed[wanted], partitions, own_hows, how, own_nodes, True, True, needs, free
    )
    for number in numbers:
        outcome[order[starting[number]]] = GETS
    num_placed, first = len(numbers), 0
    # By number, a job may be counted on another type than it lies on, or in a partition whose free nodes others took:
    # then all are looked at once more.
    if is_one_pool or (free[1][FREE] * free[4][0]).sum() == 0:
        if num_placed == len(starting):
            return starting, devices, sizes, outcome
        first = starting[num_placed] if is_one_pool else 0
    found = starting[:num_placed], devices, sizes
    return _assign_one_by_one(first, found, outcome, asked, rows, state, how, backfill)


@lean
def change_holding(row, change, state):  # type: ignore[no-untyped-def]
    """A job takes the devices that it has (1), and what comes with them, or gives them back (-1)."""
    per_device, per_node, by_type, aux, _ = state.free
    job = state.table[row]
    devices = state.written[job.first_device : job.first_device + job.held]
    if job.has_auxiliary:
        change_auxiliary_with(devices, job.needs, -change, per_device, aux)
    change_tenants(devices, change, per_device, per_node, by_type)


@compiled
def _walk(order, counts, kinds, rows, table, partitions, backfill):  # type: ignore[no-untyped-def]
    """Decide by number of devices alone: positions of jobs that get devices or others, and each job's outcome."""
    asked, held, held_type, allowed = table.num_devices, table.held, table.held_type, table.allowed
    num_types = partitions.shape[1] - len(partitions)
    left, blocked = partitions[:, :num_types].copy(), zeros(len(partitions), int64)
    idle = left if num_types == 1 else left.copy()
    total = left[0].sum()
    starting, outcome = empty(len(order), int64), zeros(len(rows), int64)
    num_starting, partition, is_divided = 0, 0, len(left) > 1
    for number in range(len(rows)):
        row = rows[number]
        if held[row] > 0:
            outcome[number] = LOSES
            if num_types > 1:
                take_room(idle, partitions, table.partition[row], held[row], held_type[row])
    for i in range(len(order)):
        if total == 0:
            break
        row = rows[order[i]]
        n = counts[i] if len(counts) else asked[row]
        if n == 0:
            continue
        kind = kinds[i] if len(kinds) else -1
        if is_divided:
            partition = table.partition[row]
        bits = (1 << kind if kind >= 0 else allowed[row]) & ~blocked[partition]
        pool, own = -1, held_type[row]
        if held[row] == n and (bits >> own) & 1 and has_room(left, partitions, partition, n, own):
            pool = own
        if pool < 0 and num_types > 1:  # rather what nobody has than what others would lose
            pool = _idle_pool(idle, left, partitions, partition, n, bits)
            if pool >= 0:
                take_room(idle, partitions, partition, n, pool)
        if pool < 0:
            pool = pool_with_room(left, partitions, partition, n, bits)
        if pool >= 0:
            take_room(left, partitions, partition, n, pool)
            total -= n
            if held[row] == n and pool == own:
                outcome[order[i]] = KEEPS
            else:
                starting[num_starting] = i
                num_starting += 1
        elif not backfill and bits:
            for other in range(len(blocked)):  # all partitions that share nodes with this one
                if partitions[other, num_types + partition]:
                    blocked[other] |= bits
    return starting[:num_starting], outcome


@lean
def _idle_pool(idle, left, partitions, partition, wanted, allowed):  # type: ignore[no-untyped-def]
    """Find a pool as `pool_with_room` does, of devices that no job has now."""
    for kind in range(left.shape[1]):
        if (
            (allowed >> kind) & 1
            and has_room(left, partitions, partition, wanted, kind)
            and has_room(idle, partitions, partition, wanted, kind)
        ):
            return kind
    return -1


@compiled
def _assign_one_by_one(  # type: ignore[no-untyped-def]
    first, found, outcome, asked, rows, state, how, backfill
):
    """Go on with `assign` where not all is as by number.

    Parameters
    ----------
    first : place in the order of the first job that may not have found a place.
    found : places in the order, devices and sizes of those that have found theirs.
    asked : as `assign` has it.
    """
    order, counts, kinds, hows, on_nodes = asked
    table, (_, per_node, by_type, aux, members) = state.table, state.free
    places, given, sizes = empty(len(order), int64), empty(state.num_devices, int64), empty(len(order), int64)
    placed, count = len(found[0]), len(found[1])
    places[:placed], given[:count], sizes[:placed] = found
    available, num_left, last = _available(first, order, outcome, rows, state)
    failed, unblocked, passed = nothing_failed(num_left), empty(0, int64), first
    for i in range(first, len(order)):
        if i > last or num_left == 0:
            break
        number = order[i]
        row = rows[number]
        job = table[row]
        n = counts[i] if len(counts) else job.num_devices
        if outcome[number] == KEEPS:
            num_left -= job.held
        if n == 0 or outcome[number] in (KEEPS, GETS) or (len(on_nodes) and on_nodes[i].any()):
            continue
        kind, own_how = kinds[i] if len(kinds) else -1, hows[i] if len(hows) and hows[i] >= 0 else how
        bits = 1 << kind if kind >= 0 else job.allowed
        key = bits, job.partition, own_how
        if outcome[number] == WAITS and backfill and aux.shape[1] == 0 and has_failed(failed, n, *key):
            continue
        usable, need = usable_nodes(job.partition, members, unblocked), job.needs
        may_keep = outcome[number] == LOSES and _has_all_free(row, n, bits, state)
        if may_keep and _may_stay(row, usable, state):
            change_holding(row, 1, state)
            outcome[number], num_left = KEEPS, num_left - n
            continue
        taken = empty(0, int64)
        if aux.shape[1] or not has_failed(failed, n, *key):
            wish = n, bits, usable, own_how, need
            taken = find_place(*wish, per_node, by_type, aux, are_in_racks(per_node))
            if len(taken) == 0:
                _count_kept(order[passed:i], -1, outcome, rows, state, available)
                passed = i
                taken = _take_away(wish, i, available, order, outcome, rows, state)
                if len(taken):
                    last = len(order) - 1
                else:
                    note_failed(failed, n, *key)
        if len(taken):
            _take(taken, n, need, given[count:], available, state.free)
            outcome[number] = GETS
            places[placed], sizes[placed] = i, n
            placed, count, num_left = placed + 1, count + n, num_left - n
        elif not backfill:
            unblocked = without_nodes_of(bits, job.partition, members, unblocked, per_node)
    return places[:placed], given[:count], sizes[:placed], outcome


@lean
def _take(taken, n, need, given, available, free):  # type: ignore[no-untyped-def]
    """A job takes devices of nodes, which are written down, and what comes with them."""
    per_device, per_node, by_type, aux, _ = free
    take(taken, n, given, per_device, per_node, by_type)
    count_as_taken(taken, need, 1, *available)
    if aux.shape[1]:
        change_auxiliary(taken, need, -1, aux)


@compiled
def _available(first, order, outcome, rows, state):  # type: ignore[no-untyped-def]
    """Free devices plus those of jobs that keep theirs, their number, and the queue position of the last waiting job."""
    _, per_node, by_type, aux, members = state.free
    available, last = (per_node.copy(), by_type.copy(), aux.copy()), first
    _count_kept(order[first:], 1, outcome, rows, state, available)
    for i in range(first, len(order)):
        if outcome[order[i]] in (WAITS, LOSES):
            last = i
    return available, (available[0][FREE] * members[0]).sum(), last


@lean
def _count_kept(numbers, sign, outcome, rows, state, available):  # type: ignore[no-untyped-def]
    """Count the devices of jobs that keep them as free (1), or undo that (-1).

    Nearly all jobs are looked at in most decisions, and to call a function for each would take longer than what it does.
    """
    table, written, node_of = state.table, state.written, state.free[0][NODE]
    nodes, types, more = available
    held, first_device = table.held, table.first_device
    free, type_of = nodes[FREE], nodes[TYPE]
    for number in numbers:
        if outcome[number] != KEEPS:
            continue
        row = rows[number]
        first = first_device[row]
        for place in range(first, first + held[row]):
            node = node_of[written[place]]
            free[node] += sign
            types[type_of[node]] += sign
        if more.shape[1] and table.has_auxiliary[row]:
            devices = written[first : first + held[row]]
            change_auxiliary_with(devices, table.needs[row], sign, state.free[0], more)


@lean
def _has_all_free(row, n, bits, state):  # type: ignore[no-untyped-def]
    """Whether a job that was to lose its devices wants the same, and nobody has taken them."""
    job = state.table[row]
    if job.held != n or (bits >> job.held_type) & 1 == 0:
        return False
    return not are_held(state.written[job.first_device : job.first_device + job.held], state.free[0])


@compiled
def _may_stay(row, usable, state):  # type: ignore[no-untyped-def]
    """Whether it may have them, with what comes with them."""
    per_device, per_node, _, aux, _ = state.free
    if aux.shape[1] == 0 and len(usable) == 0:
        return True
    job = state.table[row]
    devices = state.written[job.first_device : job.first_device + job.held]
    taken = nodes_of(devices, per_device, per_node.shape[1])
    if len(usable) and (taken * (1 - usable)).any():
        return False
    return fits_on(taken, job.needs, per_node, aux)


@lean
def _is_on(row, taken, state):  # type: ignore[no-untyped-def]
    """Whether a job has devices on nodes from which devices are taken."""
    job = state.table[row]
    devices = state.written[job.first_device : job.first_device + job.held]
    return are_any_on(devices, taken, state.free[0])


@compiled
def _take_away(wish, i, available, order, outcome, rows, state):  # type: ignore[no-untyped-def]
    """A place for a job that finds none else, once the less urgent ones that have it lost it.

    Parameters
    ----------
    wish : what `find_place` has to know of the job.
    i : its place in the order.
    available : what is free, and what those have who come after it.
    """
    n, bits, usable, own_how, need = wish
    nodes, types, more = available
    taken = find_place(n, bits, usable, own_how, need, nodes, types, more, are_in_racks(nodes))
    if len(taken):
        others = _less_urgent(i, order, outcome)
        taken = _of_the_least_urgent(taken, wish, others, outcome, rows, state)
        _preempt(taken, need, others, outcome, rows, state)
    return taken


@compiled
def _less_urgent(i, order, outcome):  # type: ignore[no-untyped-def]
    """Numbers of the jobs that come after a place in the order and keep what they have, the most urgent first."""
    found, num = empty(len(order) - i, int64), 0
    for number in order[i + 1 :]:
        if outcome[number] == KEEPS:
            found[num] = number
            num += 1
    return found[:num]


@compiled
def _of_the_least_urgent(taken, wish, others, outcome, rows, state):  # type: ignore[no-untyped-def]
    """A place for a job where as few of the others lose theirs as can be, counted from the least urgent one.

    Parameters
    ----------
    taken : where it finds one if all of them do.
    wish : what `find_place` has to know of the job.
    others : numbers of these, the most urgent first.
    """
    n, bits, usable, own_how, need = wish
    _, per_node, by_type, aux, _ = state.free
    has_racks = are_in_racks(per_node)
    enough, too_few, step = 0, len(others), 1
    while too_few - enough > 1:
        # Most often a few of them will do: twice as many are tried each time until they do, then what is between.
        middle = max(len(others) - step, (enough + too_few) // 2) if enough == 0 else (enough + too_few) // 2
        step *= 2
        nodes, types, more = per_node.copy(), by_type.copy(), aux.copy()
        _count_kept(others[middle:], 1, outcome, rows, state, (nodes, types, more))
        found = find_place(n, bits, usable, own_how, need, nodes, types, more, has_racks)
        if len(found):
            enough, taken = middle, found
        else:
            too_few = middle
    return taken


@lean
def _preempt(taken, need, others, outcome, rows, state):  # type: ignore[no-untyped-def]
    """Take devices of the least urgent others until so many are free on every node."""
    _, per_node, _, aux, _ = state.free
    last = len(others)
    while last > 0:
        last -= 1
        if _is_on(rows[others[last]], taken, state):
            change_holding(rows[others[last]], -1, state)
            outcome[others[last]] = LOSES
            if fits_on(taken, need, per_node, aux):
                break
    for number in others[last:]:  # without those that need not
        if outcome[number] == LOSES:
            change_holding(rows[number], 1, state)
            if fits_on(taken, need, per_node, aux):
                outcome[number] = KEEPS
            else:
                change_holding(rows[number], -1, state)
