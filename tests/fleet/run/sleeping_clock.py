"""A clock that goes on only when somebody sleeps."""

from __future__ import annotations


class Clock:
    """Stands for the module `time`."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds
