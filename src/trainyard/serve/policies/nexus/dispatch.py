"""Early drop: requests are given up in time, so that those after them go in a batch that is large enough.

Section 6.3. To drop a request only once it is too late lets the first in the queue have so little time left that only
small batches meet it; these are slow for each request, and the queue never recovers. Early drop looks through the queue
with a window of the batch that the session was given, and stops at the first request from which on a whole window can be
computed in time; all before it are dropped.
"""

from __future__ import annotations

from collections.abc import Sequence

from trainyard.serve.policies.nexus.profile import BatchingProfile

__all__ = ["early_drop", "lazy_drop"]


def early_drop(
    deadline_s: Sequence[float], now_s: float, batch: int, profile: BatchingProfile
) -> tuple[int, int]:
    """How many of the first in a queue are dropped, and how many after these are computed now.

    Parameters
    ----------
    deadline_s : of each request, in the order in which they came.
    batch : how many the session is to compute at once.
    """
    for first, due_s in enumerate(deadline_s):
        size = min(batch, len(deadline_s) - first)
        if now_s + profile.latency(size) <= due_s:
            return first, size
    return len(deadline_s), 0


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
