"""Baselines: queues in one order.

References
----------
FIFO, shortest job first, shortest remaining time first and least attained service are textbook disciplines; L. Kleinrock,
"Queueing Systems, Volume 2", Wiley 1976, chapter 4.
"""

from __future__ import annotations

from trainyard.fleet.policy import Priority


def fifo(backfill: bool = False) -> Priority:
    """First in, first out; with ``backfill``, later jobs run past one that does not fit ("first job fit")."""
    return Priority(lambda s: s.arrival_s, backfill=backfill)


def sjf() -> Priority:
    """Shortest job first: of those that wait, the one with least work; nothing is preempted."""
    return Priority(lambda s: s.left, frozenset({"length"}))


def srtf(by_device_time: bool = False) -> Priority:
    """Shortest remaining time first, preempting; by devices times time if ``by_device_time``."""
    if by_device_time:
        return Priority(lambda s: s.left * s.num_devices, frozenset({"length"}), preempts=True)
    return Priority(lambda s: s.left, frozenset({"length"}), preempts=True)
