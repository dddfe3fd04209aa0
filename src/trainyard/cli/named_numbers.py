"""Options that give names a number each, between commas: ``NAME=X,NAME=X``."""

from __future__ import annotations

import math
from collections.abc import Callable

from tyro.constructors import PrimitiveConstructorSpec

from trainyard.cli.lists import between_commas
from trainyard.reading import shown

__all__ = ["NamedNumbers", "named_numbers"]

NamedNumbers = tuple[tuple[str, float], ...]


def named_numbers(
    metavar: str, is_allowed: Callable[[float], bool], advice: str
) -> PrimitiveConstructorSpec[NamedNumbers]:
    """Return how such an option is read from the command line, and written there.

    Parameters
    ----------
    is_allowed : whether a finite number is allowed.
    advice : what to give instead, for the error.
    """

    def entry(text: str) -> tuple[str, float]:
        name, _, number = text.rpartition("=")
        try:
            value = float(number)
        except ValueError:
            value = math.nan
        if not name or not math.isfinite(value) or not is_allowed(value):
            raise ValueError(f"{shown(text)} is not {metavar}; give {advice}")
        return name, value

    return PrimitiveConstructorSpec(
        nargs=1,
        metavar=f"{metavar},...",
        instance_from_str=lambda given: tuple(map(entry, between_commas(given[0]))),
        is_instance=lambda value: isinstance(value, tuple),
        str_from_instance=lambda value: [",".join(f"{name}={number:g}" for name, number in value)],
    )
