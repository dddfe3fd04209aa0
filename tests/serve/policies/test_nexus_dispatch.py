"""Early drop, beside dropping only what is too late."""

from __future__ import annotations

from collections import deque

import numpy as np
import pytest

from trainyard.serve.policies.nexus.dispatch import early_drop, lazy_drop
from trainyard.serve.policies.nexus.profile import BatchingProfile

_OBJECTIVE_S = 0.1


def _linear(each_s: float) -> BatchingProfile:
    """So many seconds for each request of a batch; the largest takes half the objective, 500 requests per second."""
    largest = 25
    fixed_s = largest / 500 - each_s * largest
    return BatchingProfile(
        tuple(range(1, largest + 1)), tuple(fixed_s + each_s * b for b in range(1, largest + 1))
    )


def _share_in_time(drop, profile: BatchingProfile, rate_per_s: float) -> float:
    """Of 20,000 requests that come independently of each other, on one device."""
    arrivals_s = np.cumsum(np.random.default_rng(0).exponential(1 / rate_per_s, 20_000))
    queue: deque[float] = deque()
    now_s, place, served = 0.0, 0, 0
    while place < len(arrivals_s) or queue:
        while place < len(arrivals_s) and arrivals_s[place] <= now_s:
            queue.append(float(arrivals_s[place]) + _OBJECTIVE_S)
            place += 1
        dropped, batch = drop(list(queue), now_s, 25, profile)
        for _ in range(dropped + batch):
            queue.popleft()
        served += batch
        if batch:
            now_s += profile.latency(batch)
        elif place < len(arrivals_s):
            now_s = max(now_s, float(arrivals_s[place]))
    return served / len(arrivals_s)


@pytest.mark.parametrize("each_s", [0.0010, 0.0012, 0.0014])
def test_early_drop_serves_more_where_much_of_a_batch_is_fixed(each_s):
    """Section 6.3: at 90 % of what a device can do, dropping late loses many; the larger the fixed part, the more."""
    profile = _linear(each_s)
    early, lazy = (_share_in_time(drop, profile, 450) for drop in (early_drop, lazy_drop))
    assert early > 2 * lazy
    assert early > 0.98


def test_a_window_that_can_be_in_time_is_found_and_what_is_before_it_is_dropped():
    profile = BatchingProfile((1, 2, 3), (2.0, 3.0, 4.0))
    queue = [1.0, 3.0, 4.5, 5.0, 9.0]
    assert early_drop(queue, 0.0, 3, profile) == (
        2,
        3,
    )  # the second has time for 2, but not for a window of 3
    assert lazy_drop(queue, 0.0, 3, profile) == (1, 2)
    assert early_drop([1.0, 1.5], 0.0, 3, profile) == (2, 0)
    assert early_drop([], 0.0, 3, profile) == lazy_drop([], 0.0, 3, profile) == (0, 0)
