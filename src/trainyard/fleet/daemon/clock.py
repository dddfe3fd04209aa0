"""The clock by which a daemon measures what jobs have: setting the machine's clock changes nothing of that."""

from __future__ import annotations

import time

__all__ = ["Clock"]


class Clock:
    """Seconds since 1970 as the machine has them now, which from then on pass evenly, also while the machine sleeps.

    Where the machine's clock is set while a daemon runs, the daemon's stays as it was until it is started again.

    Parameters
    ----------
    not_before_s : the latest moment that is written down. It is the first one where the machine's clock is behind it, for
        no time that passes to be negative.
    """

    def __init__(self, not_before_s: float = 0.0) -> None:
        self._ahead_s = max(time.time(), not_before_s) - _passed_s()

    def __call__(self) -> float:
        """The moment that it is now."""
        return self._ahead_s + _passed_s()


def _passed_s() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)
