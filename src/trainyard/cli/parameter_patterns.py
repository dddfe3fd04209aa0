"""Options that name parameters of a model by patterns, between commas."""

from __future__ import annotations

from typing import Annotated

from tyro.constructors import PrimitiveConstructorSpec

from trainyard.cli.lists import between_commas
from trainyard.cli.named_numbers import NamedNumbers, named_numbers

__all__ = ["Patterns", "Scales"]


def _patterns(given: list[str]) -> tuple[str, ...]:
    return tuple(between_commas(given[0]))


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
    NamedNumbers,
    named_numbers(
        "PATTERN=X", lambda factor: factor >= 0.0, "a pattern and a factor from 0, such as 'head.**=10'"
    ),
]
"""Patterns with a factor each, between commas."""
