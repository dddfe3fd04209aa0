"""Find places of jobs among free devices, and take them; compiled.

The tables are those of `FreeDevices`. A table is one argument, since passing an argument to a compiled function takes as
long as its work on a job.
"""

from __future__ import annotations

from numpy import empty, int64, where, zeros

from trainyard.compiling import compiled, lean
from trainyard.fleet.place.nodes import workers_for

# Rows of the tables of devices and of nodes.
TENANTS, NODE, KIND = range(3)
FREE, SIZE, FIRST, TYPE, RACK = range(5)
# Of the processors and the memory of nodes: what nobody has, what there is, and what a device's share of that is; two
# rows each.
LEFT, HAS, SHARE = slice(0, 2), slice(2, 4), slice(4, 6)
# Shares that add up to what there is leave a rounding error.
_SLACK = 1e-9
# Rows of the table of what has failed.
_NUM_KEYS = 4


@lean
def change_tenants(devices, change, per_device, per_node, by_type):  # type: ignore[no-untyped-def]
    """Give devices one tenant more, or less; those are free that the last one leaves."""
    for device in devices:
        was_free = per_device[TENANTS, device] == 0
        per_device[TENANTS, device] += change
        freed = int(per_device[TENANTS, device] == 0) - int(was_free)
        node = per_device[NODE, device]
        per_node[FREE, node] += freed
        by_type[per_node[TYPE, node]] += freed


@compiled
def place_jobs(  # type: ignore[no-untyped-def]
    wanted, kinds, allowed, partitions, hows, how, on_nodes, goes_on, stops, needs, tables
):
    """Take devices of nodes for jobs; returns the numbers of those that got any, the devices, and how many each has.

    Parameters
    ----------
    on_nodes : devices that each is to have of every node, a row each; all 0, or no rows, where the placement decides.
    stops : leave off at the first that finds no place, whatever comes after it.
    """
    per_device, per_node, by_type, aux, members = tables
    total, unblocked = by_type.sum(), empty(0, int64)
    numbers, counts, devices = empty(len(wanted), int64), empty(len(wanted), int64), empty(total, int64)
    failed, placed, count = nothing_failed(total), 0, 0
    has_racks = are_in_racks(per_node)
    for i in range(len(wanted)):
        if total == 0:
            break
        if wanted[i] == 0:
            continue
        kind, own_how = kinds[i] if len(kinds) else -1, hows[i] if len(hows) and hows[i] >= 0 else how
        bits, partition = 1 << kind if kind >= 0 else allowed[i], partitions[i] if len(partitions) else 0
        taken = empty(0, int64)
        if len(on_nodes) and on_nodes[i].any():
            if fits_on(on_nodes[i], needs[:, i] if needs.shape[1] else zeros(2), per_node, aux):
                taken = on_nodes[i].copy()
        elif not has_failed(failed, wanted[i], bits, partition, own_how):
            need = needs[:, i] if needs.shape[1] else zeros(2)
            usable = usable_nodes(partition, members, unblocked)
            taken = find_place(wanted[i], bits, usable, own_how, need, per_node, by_type, aux, has_racks)
            if len(taken) == 0 and needs.shape[1] == 0:
                note_failed(failed, wanted[i], bits, partition, own_how)
        if len(taken):
            take(taken, wanted[i], devices[count:], per_device, per_node, by_type)
            if needs.shape[1]:
                change_auxiliary(taken, needs[:, i], -1, aux)
            count += wanted[i]
            total -= wanted[i]
            numbers[placed], counts[placed] = i, wanted[i]
            placed += 1
        elif stops:
            break
        elif not goes_on:
            unblocked = without_nodes_of(bits, partition, members, unblocked, per_node)
            if (unblocked * per_node[FREE]).sum() == 0:
                break
    return numbers[:placed], devices[:count], counts[:placed]


@lean
def pool_for(left, wanted, kind, allowed):  # type: ignore[no-untyped-def]
    """The pool of a kind, all devices of one type, if it has room; of any (-1) the first that may and has; -1 for none.

    Parameters
    ----------
    left : devices of every pool.
    allowed : pools in which the gang can run, as bits.
    """
    if kind >= 0:
        return kind if left[kind] >= wanted else -1
    for pool in range(len(left)):
        if left[pool] >= wanted and (allowed >> pool) & 1:
            return pool
    return -1


@compiled
def usable_nodes(partition, members, unblocked):  # type: ignore[no-untyped-def]
    """Return 1 for each node that a job of a partition may have, else 0; empty if it may have all.

    Parameters
    ----------
    unblocked : the same of nodes that no job holds up; empty where none does.
    """
    if partition == 0:
        return unblocked
    return members[partition] * unblocked if len(unblocked) else members[partition]


@compiled
def without_nodes_of(bits, partition, members, unblocked, per_node):  # type: ignore[no-untyped-def]
    """Nodes that are not held up, when a job finds no place that could have those of its types and its partition."""
    found = unblocked.copy() if len(unblocked) else members[0].copy()
    for node in range(len(found)):
        if (bits >> per_node[TYPE, node]) & 1 and members[partition, node]:
            found[node] = 0
    return found


@compiled
def are_in_racks(per_node):  # type: ignore[no-untyped-def]
    """Whether nodes are in several racks."""
    return per_node[RACK].max() > 0


@compiled
def nothing_failed(most_devices):  # type: ignore[no-untyped-def]
    """A note of jobs that found no place, by the devices that they want, before there are any."""
    return zeros((_NUM_KEYS, most_devices + 1), int64)


@lean
def has_failed(failed, wanted, bits, partition, how):  # type: ignore[no-untyped-def]
    """Whether a job that asked for the same found no place before, since when nothing has become free."""
    if wanted >= failed.shape[1]:
        return True
    same = failed[1, wanted] == bits and failed[2, wanted] == partition and failed[3, wanted] == how
    return failed[0, wanted] and same


@lean
def note_failed(failed, wanted, bits, partition, how):  # type: ignore[no-untyped-def]
    """Note a job that found no place; of one that wants more than there is, that is known without."""
    if wanted < failed.shape[1]:
        failed[0, wanted], failed[1, wanted] = 1, bits
        failed[2, wanted], failed[3, wanted] = partition, how


@compiled
def find_place(wanted, bits, usable, how, need, per_node, by_type, aux, has_racks):  # type: ignore[no-untyped-def]
    """Count the devices of each node that a job would take; an empty array if it has no place.

    Parameters
    ----------
    bits : types of device that it may have, of which it takes the first that has a place.
    usable : of `usable_nodes`.
    need : processors and memory with each device, 0 for its share.
    has_racks : of `are_in_racks`.
    """
    for kind in range(len(by_type)):
        if (bits >> kind) & 1 == 0 or by_type[kind] < wanted:
            continue
        free, sizes = per_node[FREE], per_node[SIZE]
        if len(by_type) > 1 or len(usable):
            own = per_node[TYPE] == kind
            if len(usable):
                own &= usable > 0
            free, sizes = where(own, free, 0), where(own, sizes, 0)
        if aux.shape[1]:
            free, sizes = (
                with_their_needs(free, aux[LEFT], need, aux),
                with_their_needs(sizes, aux[HAS], need, aux),
            )
        if (aux.shape[1] or len(usable)) and free.sum() < wanted:
            continue
        taken = workers_for(how, free, wanted, sizes, per_node[RACK], has_racks)
        if len(taken):
            return taken
    return empty(0, int64)


@compiled
def with_their_needs(count, there, need, aux):  # type: ignore[no-untyped-def]
    """Count on each node the devices, up to ``count``, that can each have the processors and memory that a job needs."""
    found = count.copy()
    for node in range(len(count)):
        found[node] = _with_needs_on(node, count[node], there, need, aux)
    return found


@lean
def _with_needs_on(node, count, there, need, aux):  # type: ignore[no-untyped-def]
    for what in range(2):
        each = need[what] if need[what] > 0 else aux[SHARE][what, node]
        if each > 0 and each * count > there[what, node] * (1 + _SLACK):
            count = max(0, int(there[what, node] * (1 + _SLACK) // each))
    return count


@lean
def change_auxiliary(taken, need, sign, aux):  # type: ignore[no-untyped-def]
    """A job gets (-1) processors and memory with so many devices of every node, or gives them back (1)."""
    for node in range(len(taken)):
        if taken[node]:
            change_auxiliary_of(node, taken[node], need, sign, aux[LEFT], aux[SHARE])


@lean
def change_auxiliary_with(devices, need, sign, per_device, aux):  # type: ignore[no-untyped-def]
    """The same with devices."""
    for device in devices:
        change_auxiliary_of(per_device[NODE, device], 1, need, sign, aux[LEFT], aux[SHARE])


@lean
def change_auxiliary_of(node, count, need, sign, left, share):  # type: ignore[no-untyped-def]
    """The same with so many devices of one node."""
    for what in range(2):
        each = need[what] if need[what] > 0 else share[what, node]
        if each > 0:  # what a node does not say that it has is not counted
            left[what, node] += sign * each * count


@lean
def count_as_taken(taken, need, sign, per_node, by_type, aux):  # type: ignore[no-untyped-def]
    """So many devices of every node, and what comes with them, count as taken (1), or as free again (-1)."""
    for node in range(len(taken)):
        per_node[FREE, node] -= sign * taken[node]
        by_type[per_node[TYPE, node]] -= sign * taken[node]
    if aux.shape[1]:
        change_auxiliary(taken, need, -sign, aux)


@lean
def fits_on(taken, need, per_node, aux):  # type: ignore[no-untyped-def]
    """Whether so many devices of every node are free, with what a job needs with them."""
    for node in range(len(taken)):
        free = per_node[FREE, node]
        if aux.shape[1] and taken[node]:
            free = _with_needs_on(node, free, aux[LEFT], need, aux)
        if free < taken[node]:
            return False
    return True


@lean
def are_held(devices, per_device):  # type: ignore[no-untyped-def]
    """Whether a job has any of these devices."""
    for device in devices:  # noqa: SIM110  (nothing else is as fast when compiled)
        if per_device[TENANTS, device]:
            return True
    return False


@lean
def are_any_on(devices, taken, per_device):  # type: ignore[no-untyped-def]
    """Whether any of these devices is on a node from which devices are taken."""
    for device in devices:  # noqa: SIM110  (nothing else is as fast when compiled)
        if taken[per_device[NODE, device]]:
            return True
    return False


@compiled
def nodes_of(devices, per_device, num_nodes):  # type: ignore[no-untyped-def]
    """Count these devices on each node."""
    taken = zeros(num_nodes, int64)
    for device in devices:
        taken[per_device[NODE, device]] += 1
    return taken


@lean
def take(taken, wanted, devices, per_device, per_node, by_type):  # type: ignore[no-untyped-def]
    """Take so many devices of every node, ``wanted`` in all, and write down which."""
    tenants, count = per_device[TENANTS], 0
    for node in range(len(taken)):
        if taken[node] == 0:
            continue
        device = per_node[FIRST, node]
        for _ in range(taken[node]):
            while tenants[device]:
                device += 1
            tenants[device] = 1
            devices[count] = device
            count += 1
        per_node[FREE, node] -= taken[node]
        by_type[per_node[TYPE, node]] -= taken[node]
        if count == wanted:
            break
