"""Pacing: a process takes no more than its part of a core, so that it is as fast beside busy neighbours as alone."""

from __future__ import annotations

import time

# A process that had to wait makes up for that, but not for hours in which it was stopped.
_CREDIT_S = 10.0


class Pacer:
    """Lets a process rest between steps until a slower core would have come as far.

    The rest is in proportion to the time of a core that the step before it took. That differs by a third from one step
    to the next, busy neighbours or none, so the least of all steps would be less the longer a process runs.

    Parameters
    ----------
    part : of the time of a core that each thread may take; 1 never rests.
    num_threads : that compute.
    """

    def __init__(self, part: float, num_threads: int) -> None:
        self._rate = part * num_threads
        self._rests = part < 1.0
        self._due_s, self._used_s = time.perf_counter(), time.process_time()

    def rest(self) -> None:
        """Called before a step but the first: who is asked to leave after the last one does so without a rest."""
        if not self._rests:
            return
        used_s, now_s = time.process_time(), time.perf_counter()
        self._due_s = max(self._due_s + (used_s - self._used_s) / self._rate, now_s - _CREDIT_S)
        self._used_s = used_s
        if self._due_s > now_s:
            time.sleep(self._due_s - now_s)
