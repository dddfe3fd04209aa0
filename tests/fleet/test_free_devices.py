"""Which free devices jobs get, one after the other."""

from __future__ import annotations

import numpy as np
import pytest

from trainyard.fleet.place.free import FreeDevices
from trainyard.fleet.place.nodes import CONSOLIDATED
from trainyard.fleet.site import Host, Site

NONE = np.zeros(0, np.int64)
A, B = 1, 2
# Two of the four devices of every node of type a are taken: four are free, on no node together.
SITE, TAKEN = Site("two types", (Host("a", 4), Host("a", 4), Host("b", 4))), (0, 1, 4, 5)


@pytest.mark.parametrize(
    ("wanted", "allowed", "given"),
    [
        # It lies on b, and leaves a to the next one.
        ([4, 2], [A | B, A], {0: (8, 9, 10, 11), 1: (2, 3)}),
        # It has enough devices of a and cannot lie there: they are kept for it.
        ([4, 2], [A, A], {}),
        ([4, 2], [A, B], {1: (8, 9)}),
        # The first keeps all of a, so the second finds nothing where it is not allowed on b.
        ([4, 1, 4], [A, A, B], {2: (8, 9, 10, 11)}),
        # More than there are keep nothing.
        ([5, 2], [A, A], {1: (2, 3)}),
    ],
)
def test_what_is_kept_from_those_after_it(
    wanted: list[int], allowed: list[int], given: dict[int, tuple[int, ...]]
) -> None:
    free = FreeDevices(SITE)
    free.take_these(TAKEN)
    numbers, devices = free.place(np.array(wanted), NONE, np.array(allowed), NONE, CONSOLIDATED, True)
    assert dict(zip(numbers.tolist(), devices, strict=True)) == given
    assert free.total == 8 - sum(map(len, given.values()))
