"""How a file begins, and of which known format it is for that."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from trainyard.reading.errors import ReadingError
from trainyard.reading.plain import plain_beginning

_HEAD_BYTES = 65536
_FAR = 0.5  # share of the columns of a format that may be missing where it is said to be near


@dataclass(frozen=True)
class Head:
    """The beginning of a file.

    Attributes
    ----------
    path : the file.
    text : of its first 64 KiB.
    is_cut : whether the file goes on.
    """

    path: Path
    text: str
    is_cut: bool

    @classmethod
    def of(cls, path: Path) -> Head:
        """Read it.

        Raises
        ------
        ReadingError
            If there is no such file, or it is of a kind that is refused.
        """
        begins = plain_beginning(path, _HEAD_BYTES + 1)
        return cls(path, begins[:_HEAD_BYTES].decode("utf-8", "replace"), is_cut=len(begins) > _HEAD_BYTES)

    @property
    def first(self) -> str:
        """The first line."""
        return self.text.partition("\n")[0].rstrip("\r")

    @property
    def lines(self) -> list[str]:
        """All lines that are whole."""
        lines = self.text.splitlines()
        return lines[:-1] if self.is_cut else lines

    def columns(self, separator: str = ",") -> frozenset[str]:
        """Fields of the first line."""
        return frozenset(name.strip() for name in self.first.split(separator))


Matches = Callable[[Head], bool]
"""Whether a file that begins so is of a format."""


@dataclass(frozen=True)
class HasColumns:
    """Whether the first line names all columns of one of some layouts, and none of others.

    Attributes
    ----------
    layouts : columns of each.
    without : columns that are not there.
    or_else : what else a file of the format may begin with.
    """

    layouts: tuple[tuple[str, ...], ...]
    without: tuple[str, ...] = ()
    or_else: Matches | None = None

    def __call__(self, head: Head) -> bool:
        columns = head.columns()
        found = columns.isdisjoint(self.without) and any(map(columns.issuperset, self.layouts))
        return found or (self.or_else is not None and self.or_else(head))

    def distance(self, head: Head) -> tuple[float, str]:
        """The share of the columns of the nearest layout that are missing, and what has to change, in words."""
        columns = head.columns()
        layout = min(self.layouts, key=lambda names: len(set(names) - columns) / len(names))
        missing = [name for name in layout if name not in columns]
        foreign = [name for name in self.without if name in columns]
        said = [f"needs {', '.join(missing)}"] * bool(missing) + [f"has no {', '.join(foreign)}"] * bool(
            foreign
        )
        return len(missing) / len(layout), " and ".join(said)


def has_columns(*names: str, without: tuple[str, ...] = ()) -> HasColumns:
    """Whether the first line names these columns, and none of others."""
    return HasColumns((names,), without)


def has_keys(*names: str) -> Matches:
    """Whether the first line is a JSON object, or the beginning of one, with these keys."""

    def matches(head: Head) -> bool:
        first = head.first.lstrip()
        return first.startswith("{") and all(f'"{name}"' in first for name in names)

    return matches


class Recognisable(Protocol):
    """A format of files that says what they begin with."""

    @property
    def matches(self) -> Matches:
        """Whether a file that begins so is of it."""


_Format = TypeVar("_Format", bound=Recognisable)


def recognised(path: Path, formats: Mapping[str, _Format], what: str) -> _Format:
    """The format of a trace.

    Parameters
    ----------
    formats : those that are known, by name.
    what : a line of a trace tells of, such as ``job``.

    Raises
    ------
    ReadingError
        If it is of none, or could be of several.
    """
    head = Head.of(path)
    if not head.text.strip():
        raise ReadingError(f"trace {path} is empty; a trace has a line for each {what}")
    found = [name for name, entry in formats.items() if entry.matches(head)]
    if len(found) != 1:
        near = "" if found else _nearest(head, formats)
        said = f"could be {', '.join(found)}" if found else "is of no known format"
        raise ReadingError(
            f"trace {path} {said}; name one: {', '.join(formats)}. It begins with {head.first[:80]!r}{near}"
        )
    return formats[found[0]]


def _nearest(head: Head, formats: Mapping[str, Recognisable]) -> str:
    """The format whose columns are most like those of a file, if at least half of them are there; else empty."""
    near = [
        (*entry.matches.distance(head), name)
        for name, entry in formats.items()
        if isinstance(entry.matches, HasColumns)
    ]
    share, said, name = min(near, key=lambda each: each[0], default=(1.0, "", ""))
    return f". The nearest is {name}, which {said}" if share <= _FAR else ""
