"""Options that name parameters of a model by patterns, between commas."""

from __future__ import annotations

import math
from typing import Annotated

from tyro.constructors import PrimitiveConstructorSpec

from trainyard.cli.lists import between_commas

__all__ = ["Patterns", "Scales"]


def _patterns(given: list[str]) -> tuple[str, ...]:
    return tuple(between_commas(given[0]))


def _scales(given: list[str]) -> tuple[tuple[str, float], ...]:
    return tuple(map(_scale, between_commas(given[0])))


def _scale(text: str) -> tuple[str, float]:
    pattern, _, factor = text.rpartition("=")
    try:
        number = float(factor)
    except ValueError:
        number = math.nan
    if not pattern or not 0.0 <= number < math.inf:
        raise ValueError(f"--lr-scale {text}: give a pattern and a factor from 0, such as 'head.**=10'")
    return pattern, number


Patterns = Annotated[
    tuple[str, ...],
    PrimitiveConstructorSpec(
        nargs=1,
        metavar="PATTERNS",
        instance_from_str=_patterns,
        is_instance=lambda value: isinstance(value, tuple),
        str_from_instance=lambda value: [",".join(value)],
    ),
]
"""Patterns between commas."""
Scales = Annotated[
    tuple[tuple[str, float], ...],
    PrimitiveConstructorSpec(
        nargs=1,
        metavar="PATTERN=X",
        instance_from_str=_scales,
        is_instance=lambda value: isinstance(value, tuple),
        str_from_instance=lambda value: [",".join(f"{pattern}={factor:g}" for pattern, factor in value)],
    ),
]
"""Patterns with a factor each, between commas."""
