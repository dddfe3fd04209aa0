"""Bounds of numbers on the command line, which stand with the options and are checked before a verb does anything."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, get_args, get_type_hints

from trainyard.reading.limits import LARGEST_NUMBER, MOST_ROWS, MOST_STEPS

__all__ = ["COUNT", "PROCESSES", "QUANTITY", "ROWS", "SEED", "STEPS", "Bounds", "check_bounds"]


@dataclass(frozen=True)
class Bounds:
    """What an option may be.

    Attributes
    ----------
    least, most : both are allowed.
    """

    least: float
    most: float


ROWS = Bounds(1, MOST_ROWS)
STEPS = Bounds(0, MOST_STEPS)
COUNT = Bounds(0, 1_000_000)
PROCESSES = Bounds(1, 256)
SEED = Bounds(0, 2**63 - 1)
QUANTITY = Bounds(0.0, LARGEST_NUMBER)


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
            if isinstance(bounds, Bounds) and value is not None and not bounds.least <= value <= bounds.most:
                option = "--" + name.replace("_", "-")
                raise ValueError(
                    f"{option} {value}: allowed is {bounds.least:,} to {bounds.most:,}; give such a number"
                )
