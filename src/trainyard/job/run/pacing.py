"""Pacing: a process takes no more than its part of a core, so that it is as fast beside busy neighbours as alone."""

from __future__ import annotations

import math
import time

# A process that had to wait makes up for that, but not for hours in which it was stopped.
_CREDIT_S = 10.0


class Pacer:
    """Lets a process rest between steps until a slower core would have come as far.

    A step counts for the least time of a core that any took yet: beside busy neighbours, with which it shares caches or
    the core itself, the same work takes longer, and the rest is long enough for that.

    Parameters
    ----------
    part : of the time of a core that each thread may take; 1 never rests.
    num_threads : that compute.
    """

    def __init__(self, part: float, num_threads: int) -> None:
        self._rate = part * num_threads
        self._rests = part < 1.0
        self._due_s, self._used_s = time.perf_counter(), time.process_time()
        self._least_s = math.inf

    def rest(self) -> None:
        """Called before a step but the first: who is asked to leave after the last one does so without a rest."""
        if not self._rests:
            return
        used_s, now_s = time.process_time(), time.perf_counter()
        self._least_s = min(self._least_s, used_s - self._used_s)
        self._due_s = max(self._due_s + self._least_s / self._rate, now_s - _CREDIT_S)
        self._used_s = used_s
        if self._due_s > now_s:
            time.sleep(self._due_s - now_s)
