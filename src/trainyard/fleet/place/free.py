"""Free devices, by node, and what nodes have beside devices; changed as jobs start and stop."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from trainyard.fleet.place.find import (
    FREE,
    LEFT,
    TENANTS,
    change_auxiliary_with,
    change_tenants,
    place_jobs,
    with_their_needs,
)
from trainyard.fleet.place.grants import Laid
from trainyard.fleet.place.nodes import Ints
from trainyard.hardware.cluster import Cluster

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]

NO_NEEDS: Floats = np.zeros((2, 0))
_NONE: Ints = np.zeros(0, np.int64)
_NO_NODES: Ints = np.zeros((0, 0), np.int64)


class FreeDevices:
    """Which devices nobody has. Of a node the lowest are given first, so that a run repeats.

    Where nodes say how many processors and how much memory they have, those are counted, too. A job that does not ask
    for more or less holds a proportional share with every device.

    Attributes
    ----------
    by_node, by_type : numbers of free devices.
    tables : of devices, of nodes, of types, of what nodes have beside devices, and of the nodes of every partition, as
        compiled functions take them.
    """

    def __init__(self, cluster: Cluster) -> None:
        sizes = cluster.devices_per_node
        per_device = np.array(
            (~cluster.is_usable, cluster.node_of, cluster.type_of_node[cluster.node_of]), np.int64
        )
        about = sizes, sizes, cluster.first_device[:-1], cluster.type_of_node, cluster.rack_of_node
        per_node = np.array(about, np.int64)
        self.by_node: Ints = per_node[FREE]
        self.by_type = cluster.devices_of_type.copy()
        self.tables = per_device, per_node, self.by_type, _auxiliary(cluster.whole), cluster.members

    @property
    def total(self) -> int:
        """Free devices of the cluster."""
        return int(self.by_type.sum())

    @property
    def counts_auxiliary(self) -> bool:
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
        partitions: Ints = _NONE,
    ) -> tuple[Ints, Laid]:
        """Take devices for jobs, one after the other; those that have no place get none.

        Parameters
        ----------
        wanted : devices of each, all of one type; one that wants 0 gets none.
        kinds : index of the type of each, -1 for the first of those that are ``allowed``, as bits; all are if it is
            empty.
        hows : placement of each; where it is -1 or nothing, ``how`` says it.
        goes_on : whether jobs after one that has no place are tried. If not, those are that could have none of the nodes
            that it could, or if there is ``one_queue``, none.
        needs : processors and memory with each device of each job, 0 for its share; two rows.
        partitions : index of the partition of each; if it is empty, they may have any node.

        Returns
        -------
        Numbers of those that got devices, and the devices of each.
        """
        numbers, *given = place_jobs(
            wanted,
            kinds,
            allowed,
            partitions,
            hows,
            how,
            _NO_NODES,
            goes_on,
            one_queue and not goes_on,
            needs,
            self.tables,
        )
        return numbers, Laid(*given)

    def room_for(self, needs: tuple[float, float]) -> Ints:
        """Free devices of every node with which a job has the processors and the memory that it needs with each."""
        if not self.counts_auxiliary:
            return self.by_node
        aux = self.tables[3]
        found: Ints = with_their_needs(self.by_node, aux[LEFT], np.array(needs), aux)
        return found

    def taken(self) -> Bools:
        """Whether somebody has each device; so have all devices of nodes that cannot be used."""
        found: Bools = np.array(self.tables[0][TENANTS] > 0)
        return found

    def take_these(self, devices: Sequence[int] | Ints, needs: tuple[float, float] | None = None) -> None:
        """Take the devices named; one that others have already is shared with them.

        Parameters
        ----------
        needs : processors and memory that come with each, 0 for its share; by default none are counted.
        """
        given = np.asarray(devices, np.int64)
        change_tenants(given, 1, *self.tables[:3])
        if needs is not None and self.counts_auxiliary:
            change_auxiliary_with(given, np.array(needs), -1, self.tables[0], self.tables[3])


def _auxiliary(cluster: Cluster) -> Floats:
    """Return processors and memory of nodes; without columns if the nodes declare neither."""
    if not any(cluster.largest_host):
        return np.zeros((6, 0))
    has = np.array([(node.cpus, node.memory_bytes) for node in cluster.nodes], np.float64).T
    share = has / np.maximum(cluster.devices_per_node, 1)
    # What a node does not say that it has, it has enough of.
    has = np.where(has > 0, has, np.inf)
    # In another order of memory, all would be compiled anew.
    return np.ascontiguousarray(np.concatenate((has, has, share)))
