"""A mapping that was read, which knows where it stands; its values are taken by kind, and within bounds."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from trainyard.reading.errors import ReadingError, shown
from trainyard.reading.limits import LARGEST_NUMBER, MOST_NAME

_REQUIRED: Any = object()


class Items(list[Any]):
    """A list of a file.

    Attributes
    ----------
    lines : on which its members begin.
    """

    __slots__ = ("lines",)

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[int] = []

    def __reduce__(self) -> tuple[Any, ...]:
        return (list, (list(self),))


class Section(dict[str, Any]):
    """A mapping of a file.

    Attributes
    ----------
    source : what errors call the file.
    line : on which it begins; 0 where that is not known.
    lines : of its keys, as far as they are known.
    what : whose fields these are, such as ``device 'T4'``; empty where the source says it.
    """

    __slots__ = ("line", "lines", "source", "what")

    def __init__(self, source: str | Path, line: int = 0, values: Mapping[str, Any] | None = None) -> None:
        super().__init__(values or {})
        self.source = source
        self.line = line
        self.lines: dict[str, int] = {}
        self.what = ""

    @classmethod
    def of(cls, values: Any, source: str | Path) -> Section:
        """A value that is a mapping, as one.

        Raises
        ------
        ReadingError
            If it is none.
        """
        if isinstance(values, Section):
            return values
        if not isinstance(values, Mapping):
            raise ReadingError(f"{source}: expected a mapping, got {shown(values)}")
        return cls(source, 0, values)

    def __reduce__(self) -> tuple[Any, ...]:
        return (dict, (dict(self),))

    def place(self, key: str) -> str:
        """Name the place of a field, for a message."""
        line = self.lines.get(key, self.line)
        parts = (str(self.source), f"line {line}" if line else "", self.what, f"field {shown(key)}")
        return ", ".join(part for part in parts if part)

    def error(self, key: str, allowed: str) -> ReadingError:
        """Return the error about a field."""
        if key not in self:
            return ReadingError(f"{self.place(key)} is missing; allowed is {allowed}")
        return ReadingError(f"{self.place(key)}: got {shown(self[key])}, allowed is {allowed}")

    def refuse_unknown(self, known: Iterable[str]) -> None:
        """Refuse keys that are none of the known.

        Raises
        ------
        ReadingError
            Names the first such key, and lists the known.
        """
        names = tuple(known)
        for key in self:
            if key not in names:
                raise ReadingError(f"{self.place(key)}: no such field; there are {', '.join(names)}")

    def number(
        self,
        key: str,
        least: float = -LARGEST_NUMBER,
        most: float = LARGEST_NUMBER,
        default: float = _REQUIRED,
    ) -> float:
        """A finite number; it may be written as text, since YAML reads ``1e9`` so."""
        if key not in self and default is not _REQUIRED:
            return default
        value = _as_float(self.get(key))
        if not least <= value <= most:
            raise self.error(key, f"a number from {least:g} to {most:g}")
        return value

    def positive(self, key: str, default: float = _REQUIRED) -> float:
        """A finite number above 0."""
        value = default if key not in self and default is not _REQUIRED else _as_float(self.get(key))
        if not 0 < value <= LARGEST_NUMBER:
            raise self.error(key, f"a number above 0, and at most {LARGEST_NUMBER:g}")
        return value

    def whole(self, key: str, least: int, most: int, default: int = _REQUIRED) -> int:
        """A whole number within bounds."""
        if key not in self and default is not _REQUIRED:
            return default
        given = self.get(key)
        value = given if type(given) is int else _as_float(given)
        if not (least <= value <= most and value == int(value)):
            raise self.error(
                key, f"a whole number from {least:,} to {most:,}" if least < most else f"{least:,}"
            )
        return int(value)

    def flag(self, key: str, default: bool = _REQUIRED) -> bool:
        """True or false."""
        if key not in self and default is not _REQUIRED:
            return default
        value = self.get(key)
        if not isinstance(value, bool):
            raise self.error(key, "true or false")
        return value

    def text(self, key: str, default: str = _REQUIRED) -> str:
        """A name, or another short text."""
        value = self.get(key, default)
        if not isinstance(value, str) or len(value) > MOST_NAME:
            raise self.error(
                key, f"a text of at most {MOST_NAME:,} characters, in quotes if it looks like a number"
            )
        return value

    def items_of(self, key: str, default: list[Any] = _REQUIRED) -> list[Any]:
        """A list."""
        value = self.get(key, default)
        if not isinstance(value, (list, tuple)):
            raise self.error(key, "a list")
        return list(value)

    def texts(self, key: str, default: list[Any] = _REQUIRED) -> tuple[str, ...]:
        """A list of texts."""
        values = self.items_of(key, default)
        if not all(isinstance(value, str) for value in values):
            raise self.error(key, "a list of texts")
        return tuple(values)

    def section(self, key: str) -> Section:
        """A mapping."""
        value = self.get(key)
        if not isinstance(value, Mapping):
            raise self.error(key, "a mapping")
        return Section.of(value, self.place(key))

    def sections(self, key: str) -> list[Section]:
        """A list of mappings."""
        values = self.items_of(key)
        if not all(isinstance(value, Mapping) for value in values):
            raise self.error(key, "a list of mappings")
        return [Section.of(value, f"{self.place(key)}[{i}]") for i, value in enumerate(values)]


def _as_float(value: Any) -> float:
    """A number, NaN where there is none."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return math.nan
    try:
        return float(value)
    except (ValueError, OverflowError):
        return math.nan
