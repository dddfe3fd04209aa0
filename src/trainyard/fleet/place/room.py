"""How many devices jobs can have: by partition (row, as in `Cluster.members`) and type (column)."""

from __future__ import annotations

from trainyard.compiling import lean
from trainyard.hardware.cluster import WITHIN


@lean
def pool_with_room(left, partitions, partition, wanted, allowed):  # type: ignore[no-untyped-def]
    """The first device type that may be taken of which a partition has so many devices left; -1 for none.

    Parameters
    ----------
    left : devices that are left, by partition and type; all rows of which a partition is a part have to have room.
    partitions : `Cluster.partition_table`.
    allowed : device types, as bits.
    """
    for kind in range(left.shape[1]):
        if (allowed >> kind) & 1 and has_room(left, partitions, partition, wanted, kind):
            return kind
    return -1


@lean
def has_room(left, partitions, partition, wanted, kind):  # type: ignore[no-untyped-def]
    """Whether a partition has so many devices of a type left."""
    for row in range(len(left)):
        if left[row, kind] < wanted and partitions[partition, left.shape[1] + row] == WITHIN:
            return False
    return True


@lean
def take_room(left, partitions, partition, count, kind):  # type: ignore[no-untyped-def]
    """Count devices of a partition as taken, there and in all rows of which the partition is a part."""
    for row in range(len(left)):
        if partitions[partition, left.shape[1] + row] == WITHIN:
            left[row, kind] -= count
