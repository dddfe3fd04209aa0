"""How many devices jobs can have: of every type, in every partition and in all of them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainyard.compiling import lean
from trainyard.hardware.cluster import Cluster

Ints = NDArray[np.int64]


class Room(NamedTuple):
    """Devices by partition, as compiled functions take them.

    Row 0 stands for all nodes, the other rows for the partitions, as in `Cluster.members`.

    Attributes
    ----------
    devices : of every row, devices of every type that can be used now.
    within : for two rows, 1 if all nodes of the first are nodes of the second.
    members : of every row, 1 for each of its nodes.
    is_one_pool : as in `Cluster`.
    """

    devices: Ints
    within: Ints
    members: Ints
    is_one_pool: bool

    @classmethod
    def of(cls, cluster: Cluster) -> Room:
        """What there is in a cluster now."""
        members = cluster.members
        within = np.array([[(one <= other).all() for other in members] for one in members], np.int64)
        return cls(cluster.devices_of_partition, within, members, cluster.is_one_pool)


@dataclass(frozen=True, eq=False)
class Scope:
    """The nodes that a decision is about: those of a cluster, or of some of its partitions."""

    cluster: Cluster

    @cached_property
    def room(self) -> Room:
        """How many devices there are."""
        return Room.of(self.cluster)


@lean
def pool_with_room(left, within, partition, wanted, allowed):  # type: ignore[no-untyped-def]
    """The first device type that may be taken of which a partition has so many devices left; -1 for none.

    Parameters
    ----------
    left : devices that are left, as in `Room`; all rows of which a partition is a part have to have room.
    allowed : device types, as bits.
    """
    for kind in range(left.shape[1]):
        if (allowed >> kind) & 1 and has_room(left, within, partition, wanted, kind):
            return kind
    return -1


@lean
def has_room(left, within, partition, wanted, kind):  # type: ignore[no-untyped-def]
    """Whether a partition has so many devices of a type left."""
    for row in range(len(left)):  # noqa: SIM110  (nothing else is as fast when compiled)
        if left[row, kind] < wanted and within[partition, row]:
            return False
    return True


@lean
def take_room(left, within, partition, count, kind):  # type: ignore[no-untyped-def]
    """Count devices of a partition as taken, there and in all rows of which the partition is a part."""
    for row in range(len(left)):
        if within[partition, row]:
            left[row, kind] -= count
