"""Lines of a trace that know where they stand, and come in the order of arrival without being held.

Traces are read twice: once for the moments of arrival, of which a line needs 24 bytes, and once line by line in their
order. So a trace need not be sorted, and a run over it needs memory for the jobs that are there.
"""

from __future__ import annotations

import codecs
import csv
import math
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np

from trainyard.fleet.site import FleetError
from trainyard.reading import decoded, listed, not_utf8, raised_as, shown
from trainyard.reading.limits import LARGEST_NUMBER, MOST_FIELD_BYTES, MOST_LINE_BYTES

_LARGEST_WHOLE = 2**53  # beyond, not every whole number is one of 64 bits with a point


class Row(NamedTuple):
    """One line.

    Attributes
    ----------
    path, line : where it stands; lines are counted from 1.
    fields : what it says, by column.
    """

    path: Path
    line: int
    fields: dict[str, str]

    def error(self, name: str, allowed: str) -> FleetError:
        """What to raise about a field."""
        given = self.fields.get(name, "")
        return FleetError(
            f"{self.path}, line {self.line}, field {shown(name)}: got {shown(given)}, allowed is {allowed}"
        )

    def number(self, name: str, least: float = 0.0) -> float:
        """A finite number of at least ``least``."""
        value = self._value(name)
        if not least <= value <= LARGEST_NUMBER:
            raise self.error(name, f"a number of at least {least:g}" + _and_at_most(value, LARGEST_NUMBER))
        return value

    def positive(self, name: str) -> float:
        """A finite number above 0."""
        value = self._value(name)
        if not 0 < value <= LARGEST_NUMBER:
            raise self.error(name, "a finite number above 0" + _and_at_most(value, LARGEST_NUMBER))
        return value

    def count(self, name: str, least: int = 0, most: int = _LARGEST_WHOLE) -> int:
        """A whole number of at least ``least`` and at most ``most``."""
        value = self._value(name)
        if not (least <= value <= most and value.is_integer()):
            raise self.error(name, f"a whole number of at least {least}" + _and_at_most(value, most))
        return int(value)

    def _value(self, name: str) -> float:
        """A number, NaN where there is none."""
        try:
            return float(self.fields[name])
        except ValueError:
            return math.nan

    def moment_s(self, name: str) -> float:
        """Seconds since 1970 of a date and time, taken as UTC where it names no zone."""
        try:
            value = datetime.fromisoformat(self.fields[name])
        except ValueError:
            raise self.error(name, "a date and time such as 2017-10-09 07:01:55") from None
        return (value if value.tzinfo else value.replace(tzinfo=UTC)).timestamp()


def _and_at_most(value: float, most: float) -> str:
    """The upper end of what is allowed, where it was passed."""
    return f" and at most {most:,}" if value > most else ""


@dataclass(frozen=True)
class Table:
    """A trace of one job per line.

    Attributes
    ----------
    path : the file.
    needed : columns without which it is not such a trace.
    columns : all of them; where empty, the first line names them.
    separator : between fields; None for any white space.
    comment : how lines begin that say nothing.
    """

    path: Path
    needed: Sequence[str]
    columns: Sequence[str] = ()
    separator: str | None = ","
    comment: str = ""

    def rows(self) -> Iterator[Row]:
        """All lines, as they stand."""
        return (row for _, row in self._placed())

    def by_arrival(self, arrival_s: Callable[[Row], float | None]) -> Iterator[tuple[float, Row]]:
        """Jobs and when they arrive, the first first; of one moment as they stand.

        Parameters
        ----------
        arrival_s : of a line; None for one that is no job.
        """
        moments, offsets, lines = array("d"), array("q"), array("q")
        for offset, row in self._placed():
            moment = arrival_s(row)
            if moment is not None:
                moments.append(moment)
                offsets.append(offset)
                lines.append(row.line)
        order = np.argsort(np.array(moments), kind="stable")
        with self._open() as file:
            columns = self._header(file)[0]
            for place in order:
                file.seek(offsets[place])
                yield moments[place], self._row(file.readline(), lines[place], columns)

    def _placed(self) -> Iterator[tuple[int, Row]]:
        with self._open() as file:
            columns, line, offset = self._header(file)
            for text in iter(partial(file.readline, MOST_LINE_BYTES + 1), b""):
                line += 1
                if text.strip() and not (self.comment and text.startswith(self.comment.encode())):
                    yield offset, self._row(text, line, columns)
                offset += len(text)

    def _open(self) -> BinaryIO:
        try:
            return self.path.open("rb")
        except OSError as error:
            raise FleetError(f"cannot read table {self.path}: {error.strerror}") from error

    def _header(self, file: BinaryIO) -> tuple[Sequence[str], int, int]:
        """Columns, number of lines read, and where the next begins."""
        if self.columns:
            return self.columns, 0, 0
        text = file.readline(MOST_LINE_BYTES + 1)
        columns = [name.strip() for name in self._split(text.removeprefix(codecs.BOM_UTF8), 1)]
        if len(set(columns)) < len(columns):
            twice = Counter(columns).most_common(1)[0][0]
            places = listed(str(place) for place, name in enumerate(columns, 1) if name == twice)
            raise FleetError(
                f"{self.path}, line 1: {columns.count(twice)} columns are called {shown(twice)}, columns {places}; "
                "keep one"
            )
        missing = [name for name in self.needed if name not in columns]
        if missing:
            raise FleetError(
                f"{self.path}, line 1: no column {', '.join(missing)}; it has {listed(columns) or 'none'}. "
                f"Such a trace needs {', '.join(self.needed)}"
            )
        return columns, 1, len(text)

    def _row(self, text: bytes, line: int, columns: Sequence[str]) -> Row:
        values = self._split(text, line)
        if len(values) != len(columns):
            raise FleetError(
                f"{self.path}, line {line}: {len(values)} fields, but {len(columns)} columns: {listed(columns)}"
            )
        return Row(self.path, line, dict(zip(columns, values)))  # noqa: B905  (counted above)

    def _split(self, text: bytes, line: int) -> list[str]:
        if len(text) > MOST_FIELD_BYTES:
            return self._split_long(text, line)
        try:
            read = text.decode().rstrip("\r\n")
        except UnicodeDecodeError as error:
            raise FleetError(str(not_utf8(text, self.path, line, error))) from error
        return self._fields(read, line)

    def _fields(self, read: str, line: int) -> list[str]:
        if "\0" in read:
            raise FleetError(f"{self.path}, line {line}: NUL is no text; give a text file, saved in UTF-8")
        if self.separator == "," and '"' in read:
            return self._quoted(read, line)
        return read.split(self.separator)

    def _quoted(self, read: str, line: int) -> list[str]:
        try:
            return next(csv.reader((read,)))
        except csv.Error as error:
            raise FleetError(f"{self.path}, line {line}: not CSV: {error}") from error

    def _split_long(self, text: bytes, line: int) -> list[str]:
        if len(text) > MOST_LINE_BYTES:
            raise FleetError(
                f"{self.path}, line {line}: more than {MOST_LINE_BYTES:,} bytes, which is the most for a line of a table"
            )
        with raised_as(FleetError):
            fields = self._fields(decoded(text, self.path, line).rstrip("\r\n"), line)
        longest = max(fields, key=len, default="")
        if len(longest) > MOST_FIELD_BYTES:
            raise FleetError(
                f"{self.path}, line {line}: a field of {len(longest):,} characters, {shown(longest)}; allowed are "
                f"{MOST_FIELD_BYTES:,}"
            )
        return fields
