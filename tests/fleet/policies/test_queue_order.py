"""An order that is repaired is the one that sorting anew finds."""

from __future__ import annotations

import numpy as np
import pytest

from trainyard.fleet.policies.tiresias.queue_order import carried_over, merged_order


@pytest.mark.parametrize("seed", range(20))
def test_it_is_as_if_sorted_anew(seed: int) -> None:
    """Jobs leave, come and change; of three keys of few values many are equal."""
    random = np.random.default_rng(seed)
    serial, keys, order = np.zeros(0, np.int64), np.zeros((3, 0)), np.zeros(0, np.int64)
    num_entered = 0
    for _ in range(30):
        stay, num_new = (
            serial[random.random(len(serial)) < random.choice([0.0, 0.7, 1.0])],
            random.integers(6),
        )
        now = np.append(stay, np.arange(num_entered, num_entered + num_new))
        num_entered += num_new
        former = dict(zip(serial.tolist(), keys.T.tolist(), strict=True))
        keys, renumbered, num_known = carried_over(serial, keys, now)
        assert num_known == len(stay)
        assert keys.T[:num_known].tolist() == [former[number] for number in stay.tolist()]
        assert [now[n] for n in renumbered if n >= 0] == stay.tolist()
        moved = np.append(
            np.flatnonzero(random.random(num_known) < random.choice([0.0, 0.2])),
            np.arange(num_known, len(now)),
        )
        keys[:, moved] = random.choice([0.0, 1.0, np.inf], (3, len(moved)))
        order = merged_order(order, renumbered, random.permutation(moved), keys)
        assert order.tolist() == np.lexsort(keys[::-1]).tolist()
        serial = now
