"""Bounds of numbers on the command line, which stand with the options and are checked before a verb does anything."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, get_args, get_type_hints

from trainyard.reading import shown
from trainyard.reading.limits import (
    LARGEST_NUMBER,
    LEAST_PERIOD_S,
    LONGEST_S,
    MOST_DEVICES,
    MOST_ROWS,
    MOST_STEPS,
)
from trainyard.reading.quantities import seconds_as_given

__all__ = [
    "BURSTINESS", "COUNT", "DEVICES", "DURATION", "FRACTION", "JOBS", "LOAD", "PERIOD", "PERIOD_OR_NEVER", "PORT",
    "PROCESSES", "QUANTITY", "RATE", "REQUESTS", "ROWS", "RUN_STEPS", "SEED", "SEEDS", "STALL", "STEPS", "TOKENS",
    "Bounds", "check_bounds",
]  # fmt: skip


@dataclass(frozen=True)
class Bounds:
    """Values that an option may have.

    Attributes
    ----------
    least, most : both are allowed.
    or_never : whether infinity is, too.
    is_time : whether the values are seconds, which messages show with a unit.
    """

    least: float
    most: float
    or_never: bool = False
    is_time: bool = False

    def allow(self, value: float) -> bool:
        """Return whether a value is allowed."""
        return self.least <= value <= self.most or (self.or_never and value == float("inf"))

    def __str__(self) -> str:
        return f"{self._text(self.least)} to {self._text(self.most)}{', or never' if self.or_never else ''}"

    def _text(self, value: float) -> str:
        if self.is_time:
            return seconds_as_given(value)
        return f"{value:,}" if isinstance(value, int) else f"{value:g}"


ROWS = Bounds(1, MOST_ROWS)
STEPS = Bounds(0, MOST_STEPS)
RUN_STEPS = Bounds(1, MOST_STEPS)
COUNT = Bounds(0, 1_000_000)
PROCESSES = Bounds(1, 256)
SEED = Bounds(0, 2**63 - 1)
QUANTITY = Bounds(0.0, LARGEST_NUMBER)
FRACTION = Bounds(0.0, 1.0)
DURATION = Bounds(0.0, LONGEST_S, is_time=True)
PERIOD = Bounds(LEAST_PERIOD_S, LONGEST_S, is_time=True)
PERIOD_OR_NEVER = Bounds(LEAST_PERIOD_S, LONGEST_S, or_never=True, is_time=True)
JOBS = Bounds(1, 1_000_000)
SEEDS = Bounds(2, 10_000)
STALL = Bounds(1.0, LONGEST_S, or_never=True, is_time=True)
LOAD = Bounds(0.001, 1000.0)
PORT = Bounds(0, 65535)
RATE = Bounds(1e-6, 1e6)
REQUESTS = Bounds(1, 10_000_000)
TOKENS = Bounds(1, 10_000_000)
BURSTINESS = Bounds(0.001, 1000.0)
DEVICES = Bounds(1, MOST_DEVICES)


def check_bounds(options: Any) -> None:
    """Refuse an option outside of its bounds.

    Raises
    ------
    ValueError
        Names the option, what was given, and what is allowed.
    """
    for name, hint in get_type_hints(type(options), include_extras=True).items():
        for bounds in get_args(hint):
            value = getattr(options, name)
            values = value if isinstance(value, tuple) else () if value is None else (value,)
            if isinstance(bounds, Bounds) and not all(map(bounds.allow, values)):
                option = "--" + name.replace("_", "-")
                given = " ".join(map(seconds_as_given if bounds.is_time else shown, values))
                what = "such numbers" if len(values) > 1 else "such a number"
                raise ValueError(f"{option} {given}: allowed is {bounds}; give {what}")
