"""How many devices jobs can have: by partition (row, as in `Cluster.members`) and type (column)."""

from __future__ import annotations

from numpy import int64, ones

from trainyard.compiling import compiled, lean


@compiled
def partitions_within(members):  # type: ignore[no-untyped-def]
    """For every two rows of `Cluster.members`, 1 if all nodes of the first are nodes of the second."""
    within = ones((len(members), len(members)), int64)
    if len(members) > 1:
        for one in range(len(members)):
            for other in range(len(members)):
                within[one, other] = (members[one] <= members[other]).all()
    return within


@lean
def pool_with_room(left, within, partition, wanted, allowed):  # type: ignore[no-untyped-def]
    """The first device type that may be taken of which a partition has so many devices left; -1 for none.

    Parameters
    ----------
    left : devices that are left, by partition and type; all rows of which a partition is a part have to have room.
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
