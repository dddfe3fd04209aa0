"""What else a machine does while it is measured."""

from __future__ import annotations

import os
import resource
import time

import psutil

__all__ = ["BUSY", "OtherLoad", "other_load_now"]

BUSY = 0.1
"""A machine of whose cores others use more than this share is busy: what is measured then is not its own speed."""


class OtherLoad:
    """Watches the cores that this process may use, from now on."""

    def __init__(self) -> None:
        self._start = _now()

    def share(self) -> float:
        """The share of the cores' time, in [0, 1], that went to other processes than this one and its ended children.

        Other guests of a virtual machine's host count as far as the host tells. 0 where the system does not tell.
        """
        wall, used, own = (now - then for now, then in zip(_now(), self._start, strict=True))
        available = wall * len(_cores())
        return min(1.0, max(0.0, used - own) / available) if available > 0 else 0.0


def other_load_now(seconds: float = 0.25) -> float:
    """The share of the cores that others use at the moment."""
    watch = OtherLoad()
    time.sleep(seconds)
    return watch.share()


def _cores() -> set[int]:
    affinity = getattr(os, "sched_getaffinity", None)
    return affinity(0) if affinity else set(range(os.cpu_count() or 1))


def _now() -> tuple[float, float, float]:
    """Seconds by the clock, that the cores were in use, and that this process and its children used them."""
    cores = _cores()
    used = 0.0
    for index, times in enumerate(psutil.cpu_times(percpu=True)):
        if index in cores:
            # The time of guests is part of the user's.
            idle = times.idle + getattr(times, "iowait", 0.0)
            guests = getattr(times, "guest", 0.0) + getattr(times, "guest_nice", 0.0)
            used += sum(times) - idle - guests
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return time.perf_counter(), used, sum(u.ru_utime + u.ru_stime for u in usages)
