"""Which free devices jobs get, one after the other."""

from __future__ import annotations

import numpy as np
import pytest

from trainyard.fleet.place.free import FreeDevices
from trainyard.fleet.place.nodes import ANYWHERE, CONSOLIDATED, PACKED
from trainyard.hardware.cluster import Cluster, Node
from trainyard.hardware.parse import parse_cluster

NONE = np.zeros(0, np.int64)
A, B = 1, 2
# Two of the four devices of every node of type a are taken: four are free, on no node together.
CLUSTER, TAKEN = (
    Cluster("two types", (Node.named("a", 4), Node.named("a", 4), Node.named("b", 4))),
    (0, 1, 4, 5),
)


@pytest.mark.parametrize(
    ("wanted", "allowed", "given"),
    [
        # It lies on b, and leaves a to the next one.
        ([4, 2], [A | B, A], {0: (8, 9, 10, 11), 1: (2, 3)}),
        # It has enough devices of a and cannot lie there: they are for whoever can.
        ([4, 2], [A, A], {1: (2, 3)}),
        ([4, 2], [A, B], {1: (8, 9)}),
        ([4, 1, 4], [A, A, B], {1: (2,), 2: (8, 9, 10, 11)}),
        ([5, 2], [A, A], {1: (2, 3)}),
        # What finds no place is not looked for again, but smaller ones are.
        ([3, 3, 2, 2, 2], [A, A, A, A, A], {2: (2, 3), 3: (6, 7)}),
    ],
)
def test_who_has_no_place_keeps_nothing_from_those_after_it(
    wanted: list[int], allowed: list[int], given: dict[int, tuple[int, ...]]
) -> None:
    free = FreeDevices(CLUSTER)
    free.take_these(TAKEN)
    numbers, devices = free.place(np.array(wanted), NONE, np.array(allowed), NONE, CONSOLIDATED, True)
    assert dict(zip(numbers.tolist(), devices.each(), strict=True)) == given
    assert free.total == 8 - sum(map(len, given.values()))


def test_who_blocks_those_after_it_does_so_on_its_own_types() -> None:
    free = FreeDevices(CLUSTER)
    free.take_these(TAKEN)
    wanted, allowed = np.array([4, 1, 1, 1]), np.array([A, A, B, A | B])
    numbers, devices = free.place(wanted, NONE, allowed, NONE, CONSOLIDATED, False)
    assert dict(zip(numbers.tolist(), devices.each(), strict=True)) == {2: (8,), 3: (9,)}
    assert not len(free.place(wanted, NONE, allowed, NONE, CONSOLIDATED, False, one_queue=True)[0])


@pytest.mark.parametrize("how", [CONSOLIDATED, PACKED])
@pytest.mark.parametrize(
    ("wanted", "given"),
    [
        (2, (8, 9)),  # the fullest node that suffices, wherever it is
        (8, (4, 5, 6, 7, 12, 13, 14, 15)),  # two whole nodes: of one rack there are none
        (6, (8, 9, 12, 13, 14, 15)),  # a node and a half: of the second rack, which has fewest free
    ],
)
def test_a_job_on_several_nodes_lies_in_one_rack_where_there_is_room(
    how: int, wanted: int, given: tuple[int, ...]
) -> None:
    free = FreeDevices(parse_cluster("4x4@2/rack"))
    free.take_these((0, 10, 11))
    _, devices = free.place(np.array([wanted]), NONE, np.array([-1]), NONE, how, True)
    assert devices.each() == [given]


def test_racks_do_not_matter_where_devices_are_alike() -> None:
    free = FreeDevices(parse_cluster("4x4@2/rack"))
    free.take_these((0, 1, 2))
    _, devices = free.place(np.array([8]), NONE, np.array([-1]), NONE, ANYWHERE, True)
    assert devices.each() == [(3, 4, 5, 6, 7, 8, 9, 10)]


@pytest.mark.parametrize(
    ("taken", "wanted", "given"),
    [
        ((0, 4), 4, None),  # a whole node would do, and three and one are two
        ((0, 4), 6, (1, 2, 3, 5, 6, 7)),  # on two nodes, as on empty ones
        ((0, 4), 7, None),
        ((0, 1, 2, 3), 6, (4, 5, 6, 7, 8, 9)),  # a small node does for the rest
        ((0, 1, 2, 3), 7, None),
        ((), 12, tuple(range(12))),
    ],
)
def test_on_nodes_of_several_sizes_a_job_lies_on_no_more_than_it_must(
    taken: tuple[int, ...], wanted: int, given: tuple[int, ...] | None
) -> None:
    free = FreeDevices(parse_cluster("2x4+2x2"))
    free.take_these(taken)
    _, devices = free.place(np.array([wanted]), NONE, np.array([-1]), NONE, CONSOLIDATED, True)
    assert devices.each() == ([] if given is None else [given])
