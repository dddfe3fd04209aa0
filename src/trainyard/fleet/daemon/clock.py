"""Clock of a daemon: jobs gain and lose no time when somebody sets the machine's clock."""

from __future__ import annotations

import time

__all__ = ["Clock"]


class Clock:
    """Seconds since 1970: taken once from the machine's clock, then counted evenly, also while the machine sleeps.

    A daemon sees a new setting of the machine's clock only when the daemon is started again.

    Parameters
    ----------
    not_before_s : latest time on record. The clock starts at this time if the machine's clock is behind it, so that no
        duration is negative.
    """

    def __init__(self, not_before_s: float = 0.0) -> None:
        self._ahead_s = max(time.time(), not_before_s) - _passed_s()

    def __call__(self) -> float:
        """Return the present time."""
        return self._ahead_s + _passed_s()


def _passed_s() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)
