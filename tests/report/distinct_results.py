"""Results in which no two numbers are alike, and what tables and pages show of them.

A cell is read as a person reads it: a number and the unit behind it. It shows a value where that is the value in its
unit, rounded to the digits that stand there.
"""

from __future__ import annotations

import html
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from itertools import count
from types import NoneType
from typing import Any, NamedTuple, TypeVar, get_args, get_type_hints

from rich.table import Table
from rich.text import Text

T = TypeVar("T")
_GROWTH = 1.0731  # two numbers differ by more than the rounding of any cell
_NUMBER = r"([+-]?[\d,]+(?:\.\d+)?) ?([A-Za-zµ%/]*)"
_BINARY = {"B": 1.0, "KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30, "TiB": 2.0**40}
_UNITS: Mapping[str, Mapping[str, float]] = {
    "s": {"µs": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3_600.0, "d": 86_400.0},
    "bytes": _BINARY,
    "share": {"%": 0.01},
    "ratio": {"x": 1.0},
    "per s": {"/s": 1.0},
    "flop/s": {"flop/s": 1.0, "Mflop/s": 1e6, "Gflop/s": 1e9, "Tflop/s": 1e12, "Pflop/s": 1e15},
    "B/s": {"B/s": 1.0, "MB/s": 1e6, "GB/s": 1e9, "TB/s": 1e12},
    "number": {"": 1.0},
}


class Of(NamedTuple):
    """A number that a cell has to show, in seconds, bytes and the like."""

    value: float
    unit: str


Cell = str | Of | tuple[str | Of, ...]
Row = Sequence[tuple[str, Cell]]
Shown = tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]
"""Columns and rows."""


def seconds(value: float) -> Of:
    return Of(value, "s")


def share(value: float) -> Of:
    return Of(value, "share")


def ratio(value: float) -> Of:
    return Of(value, "ratio")


def memory(value: float) -> Of:
    return Of(value, "bytes")


def number(value: float) -> Of:
    return Of(value, "number")


class Distinct:
    """Makes numbers that grow from one to the next, and results of them."""

    def __init__(self, first: float = 0.0137) -> None:
        self._first, self._numbers = first, count()

    def number(self) -> float:
        return self._first * _GROWTH ** next(self._numbers)

    def whole(self) -> int:
        return round(31 * _GROWTH ** next(self._numbers))

    def of(self, kind: type[T], **given: Any) -> T:
        """A result: numbers in it and in its parts are new, and texts are the names of their fields."""
        hints = get_type_hints(kind)
        names = [f.name for f in fields(kind) if f.init] if is_dataclass(kind) else kind._fields  # type: ignore[attr-defined]
        made = {name: self._made(name, hints[name]) for name in names if name not in given}
        return kind(**given, **{name: value for name, value in made.items() if value is not None})

    def _made(self, name: str, hint: Any) -> Any:
        kinds = (
            [each for each in get_args(hint) if each is not NoneType]
            if NoneType in get_args(hint)
            else [hint]
        )
        (kind,) = kinds
        if kind is float:
            return self.number()
        if kind is int:
            return self.whole()
        if kind is str:
            return f"the {name}"
        if isinstance(kind, type) and (is_dataclass(kind) or hasattr(kind, "_fields")):
            return self.of(kind)
        return None  # its default


def check_cell(cell: str, wanted: Cell) -> None:
    """A text is there as it is; a number within the rounding of the digits that are shown."""
    parts = wanted if type(wanted) is tuple else (wanted,)
    pattern = "".join(re.escape(each) if isinstance(each, str) else _NUMBER for each in parts)
    found = re.fullmatch(pattern, cell)
    assert found is not None, (cell, wanted)
    texts = iter(found.groups())
    for each in parts:
        if isinstance(each, Of):
            text, unit = next(texts), next(texts)
            assert unit in _UNITS[each.unit], (cell, wanted)
            size = _UNITS[each.unit][unit]
            rounding = 0.5 * 10.0 ** -len(text.partition(".")[2]) * size
            shown = float(text.replace(",", "")) * size
            assert abs(shown - each.value) <= rounding * (1 + 1e-6), (cell, wanted)


def check_table(shown: Shown, wanted: Sequence[Row]) -> None:
    """A table has these rows, and each cell shows what is wanted in its column."""
    columns, rows = shown
    assert len(rows) == len(wanted)
    for row, cells in zip(rows, wanted, strict=True):
        assert columns == tuple(name for name, _ in cells)
        for cell, (_, value) in zip(row, cells, strict=True):
            check_cell(cell, value)


def check_facts(facts: Sequence[tuple[str, str]], wanted: Row) -> None:
    """The names and values of a list of facts."""
    assert [name for name, _ in facts] == [name for name, _ in wanted]
    for (_, text), (_, value) in zip(facts, wanted, strict=True):
        check_cell(text, value)


def _plain(text: Any) -> str:
    return text.plain if isinstance(text, Text) else str(text)


def printed(table: Table) -> Shown:
    """A table of the terminal."""
    cells = [[_plain(cell) for cell in column.cells] for column in table.columns]
    return tuple(_plain(column.header) for column in table.columns), tuple(zip(*cells, strict=True))


def tables_of(page: str) -> dict[str, Shown]:
    """The tables of a page by their headings."""
    found = re.findall(
        r"<h2>([^<]*)</h2><div class=scroll><table><thead>(.*?)</thead><tbody>(.*?)</tbody>", page, re.DOTALL
    )
    return {
        html.unescape(heading): (_cells(head), tuple(_cells(row) for row in body.split("</tr>")[:-1]))
        for heading, head, body in found
    }


def cards_of(page: str) -> list[tuple[str, str]]:
    """The facts at the top of a page."""
    cards = re.findall(r"<div><dt>(.*?)</dt><dd>(.*?)</dd></div>", page, re.DOTALL)
    return [(html.unescape(name), html.unescape(text)) for name, text in cards]


def _cells(row: str) -> tuple[str, ...]:
    return tuple(html.unescape(cell) for cell in re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", row, re.DOTALL))
