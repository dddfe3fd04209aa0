"""Early drop: requests are given up in time, so that those after them go in a batch that is large enough.

Section 6.3. To drop a request only once it is too late lets the first in the queue have so little time left that only
small batches meet it; these are slow for each request, and the queue never recovers. Early drop looks through the queue
with a window of the batch that the session was given, and stops at the first request from which on a whole window can be
computed in time; all before it are dropped.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from trainyard.compiling import lean
from trainyard.serve.policies.nexus.profile import BatchingProfile

__all__ = ["early_drop", "first_in_time", "lazy_drop"]


def early_drop(
    deadline_s: Sequence[float], now_s: float, batch: int, profile: BatchingProfile
) -> tuple[int, int]:
    """How many of the first in a queue are dropped, and how many after these are computed now.

    Parameters
    ----------
    deadline_s : of each request, in the order in which they came.
    batch : how many the session is to compute at once.
    """
    due_s = np.array(deadline_s, np.float64)
    dropped, size = first_in_time(due_s, 0, len(due_s), 0.0, now_s, batch, profile.latency_by_size_s)
    return int(dropped), int(size)


@lean
def first_in_time(arrival_s, first, end, allowed_s, now_s, batch, latency_s):  # type: ignore[no-untyped-def]
    """The same for requests ``first`` to ``end`` of an array, each of which is due a time after it came.

    Parameters
    ----------
    allowed_s : for each request, from its arrival.
    latency_s : of batches, by their size from 0 on; of larger ones it is the last.
    """
    for place in range(first, end):
        size = min(batch, end - place)
        if now_s + latency_s[min(size, len(latency_s) - 1)] <= arrival_s[place] + allowed_s:
            return place - first, size
    return end - first, 0


def lazy_drop(
    deadline_s: Sequence[float], now_s: float, batch: int, profile: BatchingProfile
) -> tuple[int, int]:
    """The same for who drops only those that are too late, as Clipper does: as many as the first one has time for."""
    for first, due_s in enumerate(deadline_s):
        most = min(batch, len(deadline_s) - first)
        fits = [size for size in range(1, most + 1) if now_s + profile.latency(size) <= due_s]
        if fits:
            return first, fits[-1]
    return len(deadline_s), 0
