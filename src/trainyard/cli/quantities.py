"""Options that are quantities: a number and its unit."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from trainyard.reading import ReadingError

__all__ = ["quantity"]

T = TypeVar("T")


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
