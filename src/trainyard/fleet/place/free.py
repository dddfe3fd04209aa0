"""Free devices, by node, and what nodes have beside devices; changed as jobs start and stop."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy import empty, int64, where, zeros
from numpy.typing import NDArray

from trainyard.compiling import compiled
from trainyard.fleet.place.grants import Laid
from trainyard.fleet.place.nodes import Ints, workers_for
from trainyard.fleet.site import Site

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]

NO_NEEDS: Floats = np.zeros((2, 0))

# Rows of the tables of devices and of nodes. A table is one argument, and to hand an argument to a compiled function
# takes as long as its work on a job.
_TENANTS, _NODE = range(2)
_FREE, _SIZE, _FIRST, _TYPE, _RACK = range(5)
# Of what nodes have beside devices: what nobody has, what there is, and what a device's share of that is; two rows each,
# for processors and memory.
_LEFT, _HAS, _SHARE = slice(0, 2), slice(2, 4), slice(4, 6)
# Shares that add up to what there is leave a rounding error.
_SLACK = 1e-9


class FreeDevices:
    """Which devices nobody has. Of a node the lowest are given first, so that a run repeats.

    Where nodes say how many processors and how much memory they have, those are counted, too. A job that does not ask
    for more or less holds a proportional share with every device.

    Attributes
    ----------
    by_node, by_type, total : numbers of free devices.
    kind_of : index of the type of every device.
    tables : of devices, of nodes, of types, and of what nodes have beside devices, as compiled functions take them.
    """

    def __init__(self, site: Site) -> None:
        sizes = site.devices_per_node
        per_device = np.array((~site.is_usable, site.node_of), np.int64)
        about = sizes, sizes, site.first_device[:-1], site.type_of_node, site.rack_of_node
        per_node = np.array(about, np.int64)
        self.by_node: Ints = per_node[_FREE]
        self.by_type = site.devices_of_type.copy()
        self.total = site.num_devices
        self.kind_of: Ints = site.type_of_node[site.node_of]
        self.tables = per_device, per_node, self.by_type, _beside_devices(site.whole)

    @property
    def counts_shares(self) -> bool:
        """Whether processors and memory are counted."""
        return bool(self.tables[3].shape[1])

    def place(
        self,
        wanted: Ints,
        kinds: Ints,
        allowed: Ints,
        hows: Ints,
        how: int,
        goes_on: bool,
        one_queue: bool = False,
        needs: Floats = NO_NEEDS,
    ) -> tuple[Ints, Laid]:
        """Take devices for jobs, one after the other; those that have no place get none.

        Parameters
        ----------
        wanted : devices of each, all of one type; one that wants 0 gets none.
        kinds : index of the type of each, -1 for the first of those that are ``allowed``, as bits; all are if it is
            empty.
        hows : placement of each; where it is -1 or nothing, ``how`` says it.
        goes_on : whether jobs after one that has no place are tried. If not, those are that share no type with it, or if
            there is one queue for all types, none.
        needs : processors and memory with each device of each job, 0 for its share; two rows.

        Returns
        -------
        Numbers of those that got devices, and the devices of each.
        """
        numbers, *given = place_jobs(
            wanted, kinds, allowed, hows, how, goes_on, one_queue and not goes_on, needs, *self.tables
        )
        laid = Laid(*given)
        self.total -= len(laid.devices)
        return numbers, laid

    def room_for(self, needs: tuple[float, float]) -> Ints:
        """Free devices of every node with which a job has the processors and the memory that it needs with each."""
        if not self.counts_shares:
            return self.by_node
        beside = self.tables[3]
        found: Ints = with_needs(self.by_node, beside[_LEFT], np.array(needs), beside)
        return found

    def taken(self) -> Bools:
        """Whether somebody has each device; so have all devices of nodes that cannot be used."""
        found: Bools = np.array(self.tables[0][_TENANTS] > 0)
        return found

    def take_these(self, devices: Sequence[int] | Ints, needs: tuple[float, float] | None = None) -> None:
        """Take the devices named; one that others have already is shared with them.

        Parameters
        ----------
        needs : processors and memory that come with each, 0 for its share; by default none are counted.
        """
        given = np.asarray(devices, np.int64)
        self.total += change_tenants(given, 1, *self.tables[:3])
        if needs is not None and self.counts_shares:
            hold(nodes_of(given, self.tables[0], len(self.by_node)), np.array(needs), -1, self.tables[3])


def _beside_devices(site: Site) -> Floats:
    """What nodes have beside devices; without columns where they say nothing of that."""
    if not any(site.says):
        return np.zeros((6, 0))
    has = np.array([(host.cpus, host.memory_bytes) for host in site.hosts], np.float64).T
    share = has / np.maximum(site.devices_per_node, 1)
    # What a node does not say that it has, it has enough of.
    has = np.where(has > 0, has, np.inf)
    return np.concatenate((has, has, share))


@compiled
def change_tenants(devices, change, per_device, per_node, by_type):  # type: ignore[no-untyped-def]
    """Give devices one tenant more, or less; returns how many are free that were not: those that the last one leaves."""
    total = 0
    for device in devices:
        was_free = per_device[_TENANTS, device] == 0
        per_device[_TENANTS, device] += change
        freed = int(per_device[_TENANTS, device] == 0) - int(was_free)
        node = per_device[_NODE, device]
        per_node[_FREE, node] += freed
        by_type[per_node[_TYPE, node]] += freed
        total += freed
    return total


@compiled
def place_jobs(  # type: ignore[no-untyped-def]
    wanted, kinds, allowed, hows, how, goes_on, stops, needs, per_device, per_node, by_type, beside
):
    """Take devices of nodes for jobs; returns the numbers of those that got any, the devices, and how many each has.

    Parameters
    ----------
    stops : leave off at the first that finds no place, whatever comes after it.
    """
    total, closed = by_type.sum(), 0
    numbers, counts, devices = empty(len(wanted), int64), empty(len(wanted), int64), empty(total, int64)
    nowhere, placed, count = zeros((3, total + 1), int64), 0, 0
    has_racks = are_in_racks(per_node)
    for i in range(len(wanted)):
        if total == 0:
            break
        if wanted[i] == 0:
            continue
        kind, own_how = kinds[i] if len(kinds) else -1, hows[i] if len(hows) and hows[i] >= 0 else how
        bits = (1 << kind if kind >= 0 else allowed[i]) & ~closed
        taken = empty(0, int64)
        if not is_known(nowhere, wanted[i], bits, own_how):
            need = needs[:, i] if needs.shape[1] else zeros(2)
            taken = find_place(wanted[i], bits, own_how, need, per_node, by_type, beside, has_racks)
            if len(taken) == 0 and needs.shape[1] == 0:
                note(nowhere, wanted[i], bits, own_how)
        if len(taken):
            take(taken, wanted[i], devices[count:], per_device, per_node, by_type)
            if needs.shape[1]:
                hold(taken, needs[:, i], -1, beside)
            count += wanted[i]
            total -= wanted[i]
            numbers[placed], counts[placed] = i, wanted[i]
            placed += 1
        elif stops:
            break
        elif not goes_on:
            closed |= bits
            if not_closed(closed, by_type) == 0:
                break
    return numbers[:placed], devices[:count], counts[:placed]


@compiled
def are_in_racks(per_node):  # type: ignore[no-untyped-def]
    """Whether nodes are in several racks."""
    return per_node[_RACK].max() > 0


@compiled
def not_closed(closed, by_type):  # type: ignore[no-untyped-def]
    """Devices of the types that are not among these, as bits."""
    total = 0
    for kind in range(len(by_type)):
        if (closed >> kind) & 1 == 0:
            total += by_type[kind]
    return total


@compiled
def is_known(nowhere, wanted, bits, how):  # type: ignore[no-untyped-def]
    """Whether a job that asked for the same found no place before, since when nothing has become free."""
    if wanted >= nowhere.shape[1]:
        return True
    return nowhere[0, wanted] and nowhere[1, wanted] == bits and nowhere[2, wanted] == how


@compiled
def note(nowhere, wanted, bits, how):  # type: ignore[no-untyped-def]
    nowhere[0, wanted], nowhere[1, wanted], nowhere[2, wanted] = 1, bits, how


@compiled
def find_place(wanted, bits, how, need, per_node, by_type, beside, has_racks):  # type: ignore[no-untyped-def]
    """How many devices of every node a job would take; of no node at all (an empty array) if it has no place.

    Parameters
    ----------
    bits : types of device that it may have, of which it takes the first that has a place.
    need : processors and memory with each device, 0 for its share.
    has_racks : of `are_in_racks`.
    """
    for kind in range(len(by_type)):
        if (bits >> kind) & 1 == 0 or by_type[kind] < wanted:
            continue
        free, sizes = per_node[_FREE], per_node[_SIZE]
        if len(by_type) > 1:
            own = per_node[_TYPE] == kind
            free, sizes = where(own, free, 0), where(own, sizes, 0)
        if beside.shape[1]:
            free, sizes = (
                with_needs(free, beside[_LEFT], need, beside),
                with_needs(sizes, beside[_HAS], need, beside),
            )
            if free.sum() < wanted:
                continue
        taken = workers_for(how, free, wanted, sizes, per_node[_RACK], has_racks)
        if len(taken):
            return taken
    return empty(0, int64)


@compiled
def with_needs(count, there, need, beside):  # type: ignore[no-untyped-def]
    """Of so many devices of every node, those with which a job has what it needs of what is there."""
    found, share = count.copy(), beside[_SHARE]
    for node in range(len(count)):
        for what in range(2):
            each = need[what] if need[what] > 0 else share[what, node]
            if each > 0 and each * found[node] > there[what, node] * (1 + _SLACK):
                found[node] = max(0, int(there[what, node] * (1 + _SLACK) // each))
    return found


@compiled
def hold(taken, need, sign, beside):  # type: ignore[no-untyped-def]
    """A job gets (-1) processors and memory with so many devices of every node, or gives them back (1)."""
    for node in range(len(taken)):
        for what in range(2):
            each = need[what] if need[what] > 0 else beside[_SHARE][what, node]
            if taken[node] and each > 0:  # what a node does not say that it has is not counted
                beside[_LEFT][what, node] += sign * each * taken[node]


@compiled
def change_free(device, sign, per_device, per_node, by_type):  # type: ignore[no-untyped-def]
    """A device counts as free (1), or no longer (-1)."""
    node = per_device[_NODE, device]
    per_node[_FREE, node] += sign
    by_type[per_node[_TYPE, node]] += sign


@compiled
def shift_devices(devices, sign, per_device, per_node, by_type):  # type: ignore[no-untyped-def]
    """These devices count as free (1), or no longer (-1)."""
    for device in devices:
        change_free(device, sign, per_device, per_node, by_type)


@compiled
def count_as_taken(taken, need, sign, per_node, by_type, beside):  # type: ignore[no-untyped-def]
    """So many devices of every node, and what comes with them, count as taken (1), or as free again (-1)."""
    for node in range(len(taken)):
        per_node[_FREE, node] -= sign * taken[node]
        by_type[per_node[_TYPE, node]] -= sign * taken[node]
    if beside.shape[1]:
        hold(taken, need, -sign, beside)


@compiled
def fits_on(taken, need, per_node, beside):  # type: ignore[no-untyped-def]
    """Whether so many devices of every node are free, with what a job needs with them."""
    free = per_node[_FREE]
    if beside.shape[1]:
        free = with_needs(free, beside[_LEFT], need, beside)
    for node in range(len(taken)):  # noqa: SIM110  (nothing else is as fast when compiled)
        if free[node] < taken[node]:
            return False
    return True


@compiled
def are_held(devices, per_device):  # type: ignore[no-untyped-def]
    """Whether anybody has any of these devices."""
    for device in devices:  # noqa: SIM110  (nothing else is as fast when compiled)
        if per_device[_TENANTS, device]:
            return True
    return False


@compiled
def nodes_of(devices, per_device, num_nodes):  # type: ignore[no-untyped-def]
    """How many of these devices every node has."""
    taken = zeros(num_nodes, int64)
    for device in devices:
        taken[per_device[_NODE, device]] += 1
    return taken


@compiled
def take(taken, wanted, devices, per_device, per_node, by_type):  # type: ignore[no-untyped-def]
    """Take so many devices of every node, ``wanted`` in all, and write down which."""
    tenants, count = per_device[_TENANTS], 0
    for node in range(len(taken)):
        if taken[node] == 0:
            continue
        device = per_node[_FIRST, node]
        for _ in range(taken[node]):
            while tenants[device]:
                device += 1
            tenants[device] = 1
            devices[count] = device
            count += 1
        per_node[_FREE, node] -= taken[node]
        by_type[per_node[_TYPE, node]] -= taken[node]
        if count == wanted:
            break
