"""Options that are quantities: a number and its unit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, TypeVar

from tyro.constructors import PrimitiveConstructorSpec

from trainyard.reading import ReadingError
from trainyard.reading.quantities import bytes_as_given, parse_bytes, parse_seconds, seconds_as_given

__all__ = ["Duration", "DurationOrNever", "DurationOrZero", "Size", "quantity"]

T = TypeVar("T")
_NEVER = "never"


def quantity(option: str, text: str, parse: Callable[[str], T]) -> T:
    """Read the value of an option, and name the option in the error.

    Raises
    ------
    ReadingError
        Names the option, what was given, and what is allowed.
    """
    try:
        return parse(text)
    except ReadingError as error:
        raise ReadingError(f"{option}: {error}") from None


def _rule(metavar: str, parse: Callable[[str], float], text: Callable[[Any], str]) -> Any:
    """Return the rule by which the command line reads a quantity and help shows it."""
    return PrimitiveConstructorSpec(
        nargs=1,
        metavar=metavar,
        instance_from_str=lambda given: parse(given[0]),
        is_instance=lambda value: isinstance(value, float | int),
        str_from_instance=lambda value: [text(value)],
    )


def _or_never(text: str) -> float:
    return float("inf") if text == _NEVER else parse_seconds(text)


def _or_never_text(seconds: float) -> str:
    return _NEVER if seconds == float("inf") else seconds_as_given(seconds)


def _or_zero(text: str) -> float:
    return 0.0 if text in ("0", "0s") else parse_seconds(text)


Duration = Annotated[float, _rule("TIME", parse_seconds, seconds_as_given)]
"""Seconds, given with a unit, such as ``6min``."""
DurationOrNever = Annotated[float, _rule("TIME", _or_never, _or_never_text)]
"""Seconds, given with a unit or as ``never``, which is infinity."""
DurationOrZero = Annotated[float, _rule("TIME", _or_zero, seconds_as_given)]
"""Seconds, given with a unit or as 0."""
Size = Annotated[int, _rule("SIZE", parse_bytes, bytes_as_given)]
"""Bytes, given with a unit, such as ``40GB``."""
