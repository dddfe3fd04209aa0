"""Tables of what comes over time, such as jobs, in the order in which it comes, without being held.

A table is read twice: once for the moments, of which a row needs 28 bytes, and once row by row in their order. So it need
not be sorted, and who goes through it needs memory only for what is there at a time.
"""

from __future__ import annotations

import csv
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from trainyard.reading.errors import ReadingError, listed, raised_as, shown
from trainyard.reading.left_out import LeftOut, RowError
from trainyard.reading.limits import MOST_FIELD_BYTES, MOST_LINE_BYTES
from trainyard.reading.plain import open_plain
from trainyard.reading.rows import Row

_MOST_LINES = 20  # of one row whose texts have line breaks

Moment = Callable[[Row], float | str]
"""When what a row tells of comes, in seconds; or why the row is not what is looked for, in words."""

_Item = TypeVar("_Item")


@dataclass
class Table:
    """A file with a row for each thing that comes, or several.

    Attributes
    ----------
    path : the file.
    needed : columns without which it is not such a trace.
    columns : all of them; where empty, the first line names them.
    separator : between fields; None for any white space.
    comment : how lines begin that say nothing.
    free_texts : columns whose texts may have separators and line breaks in them, without quotes. Line breaks are
        joined; separators, where only one of these columns is there.
    made_by : how to make such a file, where the first line shows that it was made otherwise.
    left_out : what becomes of rows that cannot be used; by default they are errors.
    error, row_error : what is raised where the file, or a row, cannot be read.
    """

    path: Path
    needed: Sequence[str]
    columns: Sequence[str] = ()
    separator: str | None = ","
    comment: str = ""
    free_texts: Sequence[str] = ()
    made_by: str = ""
    left_out: LeftOut | None = None
    error: ClassVar[type[ValueError]] = ReadingError
    row_error: ClassVar[type[RowError]] = RowError

    def __post_init__(self) -> None:
        self._left_out = self.left_out or LeftOut(strict=True)

    def rows(self) -> Iterator[Row]:
        """All rows, as they stand."""
        with self._open() as file:
            lines = Lines(file)
            for _, row in self._placed(lines, self._header(lines)):
                yield row

    def in_order(
        self, moment: Moment, make: Callable[[Row, float], _Item], name: str = ""
    ) -> Iterator[_Item]:
        """Return what the rows tell of, in the order of time; rows of one moment stay in their order.

        Parameters
        ----------
        make : it of a row, and the moment.
        name : column that no two rows may have the same text in; "" for none.
        """
        with self._open() as file:
            lines = Lines(file)
            columns = self._header(lines)
            found = self._index(lines, columns, moment, (lambda row: row.fields[name]) if name else None)
            order = np.argsort(found.moments, kind="stable")
            is_again = np.zeros(len(order), np.bool_)
            if name:
                is_again[:] = True
                is_again[np.unique(found.keys[order], return_index=True)[1]] = False
            for place, again in zip(order, is_again, strict=True):
                try:
                    row = self._row_at(lines, columns, found, place)
                    if again:
                        raise row.error(name, "a name that no other row has")
                    item = make(row, float(found.moments[place]))
                except RowError as error:
                    self._left_out.add_fault(error)
                else:
                    yield item

    def merged_in_order(
        self,
        moment: Moment,
        make: Callable[[Sequence[Row], float], _Item | str],
        key: Callable[[Row], str],
        part: str,
    ) -> Iterator[_Item]:
        """Merge the rows with the same key into one thing, in the order of their first moments.

        Parameters
        ----------
        make : it of its rows, in the order of their moments, and the first of these; or why they are not what is looked
            for, in words.
        part : why the further rows of one thing give nothing of their own, in words.
        """
        with self._open() as file:
            lines = Lines(file)
            columns = self._header(lines)
            found = self._index(lines, columns, moment, key)
            for at_s, places in _groups(found):
                numbers = [int(found.numbers[place]) for place in places]
                try:
                    item = make([self._row_at(lines, columns, found, place) for place in places], at_s)
                except RowError as error:
                    self._left_out.add_fault(error, *sorted(numbers))
                    continue
                if isinstance(item, str):
                    self._left_out.add(item, self.path, *sorted(numbers))
                    continue
                if len(numbers) > 1:
                    self._left_out.add(part, self.path, *sorted(numbers)[1:])
                yield item

    def _index(
        self, lines: Lines, columns: Sequence[str], moment: Moment, key: Callable[[Row], str] | None
    ) -> _Index:
        moments, offsets, numbers, keys = array("d"), array("q"), array("I"), array("q")
        for offset, row in self._placed(lines, columns):
            try:
                at_s = moment(row)
            except RowError as error:
                self._left_out.add_fault(error)
                continue
            if isinstance(at_s, str):
                self._left_out.add(at_s, self.path, row.line)
                continue
            moments.append(at_s)
            offsets.append(offset)
            numbers.append(row.line)
            if key is not None:
                keys.append(hash(key(row)))
        return _Index(_as_numpy(moments), _as_numpy(offsets), _as_numpy(numbers), _as_numpy(keys))

    def _row_at(self, lines: Lines, columns: Sequence[str], found: _Index, place: int) -> Row:
        lines.go_to(int(found.offsets[place]), int(found.numbers[place]) - 1)
        return self._row(lines.read(), lines, columns)

    def _placed(self, lines: Lines, columns: Sequence[str]) -> Iterator[tuple[int, Row]]:
        """All rows, and where they begin."""
        comment = self.comment.encode()
        while True:
            offset = lines.offset
            text = lines.read()
            if not text:
                return
            if not text.strip() or (comment and text.lstrip().startswith(comment)):
                continue
            begun = lines.offset, lines.number
            self._left_out.num_rows += 1
            try:
                row = self._row(text, lines, columns)
                if all(name == text for name, text in row.fields.items()):
                    self._left_out.add(
                        "the first line again, with the names of the columns", self.path, row.line
                    )
                else:
                    yield offset, row
            except RowError as error:
                # What was read on for it may be rows by themselves.
                lines.go_to(*begun)
                self._left_out.add_fault(error)

    def _open(self) -> BinaryIO:
        with raised_as(self.error):
            return open_plain(self.path)

    def _header(self, lines: Lines) -> Sequence[str]:
        if self.columns:
            return self.columns
        columns = [name.strip() for name in self._split(lines.read(), lines)]
        if len(set(columns)) < len(columns):
            twice = Counter(columns).most_common(1)[0][0]
            places = listed(str(place) for place, name in enumerate(columns, 1) if name == twice)
            raise self.error(
                f"{self.path}, line 1: {columns.count(twice)} columns are called {shown(twice)}, columns {places}; "
                "keep one"
            )
        missing = [name for name in self.needed if name not in columns]
        if missing:
            raise self.error(
                f"{self.path}, line 1: no column {', '.join(missing)}; it has {listed(columns) or 'none'}. "
                f"Such a trace needs {', '.join(self.needed)}"
                + f"; make it by {self.made_by}"
                * bool(self.made_by)
            )
        return columns

    def _row(self, text: bytes, lines: Lines, columns: Sequence[str]) -> Row:
        """The row that begins with a line that was just read."""
        line = lines.number
        values = self._split(text, lines)
        if len(values) != len(columns):
            values = self._with_free_text(values, lines, columns)
        if len(values) != len(columns):
            raise self.row_error(
                self.path,
                line,
                "another number of fields than of columns",
                f"{len(values)} fields, but {len(columns)} columns: {listed(columns)}",
            )
        fields = dict(zip(columns, values))  # noqa: B905  (counted above)
        return Row(self.path, line, fields, self.row_error)

    def _with_free_text(self, values: list[str], lines: Lines, columns: Sequence[str]) -> list[str]:
        """The fields of a row with the separators and line breaks that are in its text, as far as they can be."""
        texts = [columns.index(name) for name in self.free_texts if name in columns]
        if not texts:
            return values
        for _ in range(_MOST_LINES):
            if not min(texts) < len(values) < len(columns):
                break
            more = self._split(lines.read(), lines)
            if len(more) >= len(columns):  # a row by itself
                return values
            values = [*values[:-1], f"{values[-1]}\n{more[0]}", *more[1:]]
        if len(texts) == 1 and len(values) > len(columns):
            at, end = texts[0], texts[0] + 1 + len(values) - len(columns)
            values = [*values[:at], (self.separator or " ").join(values[at:end]), *values[end:]]
        return values

    def _split(self, text: bytes, lines: Lines) -> list[str]:
        """The fields of a line that was just read, and of those after it in which a text in quotes goes on."""
        self._check_length(text, lines)
        read = self._decoded(text, lines)
        is_quoted = self.separator == "," and '"' in read
        fields = self._quoted(read, lines) if is_quoted else read.split(self.separator)
        if len(text) > MOST_FIELD_BYTES:
            longest = max(fields, key=len, default="")
            if len(longest) > MOST_FIELD_BYTES:
                raise self.row_error(
                    self.path,
                    lines.number,
                    "a field that is too long",
                    f"a field of {len(longest):,} characters, {shown(longest)}; allowed are {MOST_FIELD_BYTES:,}",
                )
        return fields

    def _check_length(self, text: bytes, lines: Lines) -> None:
        if len(text) > MOST_LINE_BYTES:
            raise self.error(
                f"{self.path}, line {lines.number}: more than {MOST_LINE_BYTES:,} bytes, which is the most for a line "
                "of a table"
            )

    def _decoded(self, text: bytes, lines: Lines) -> str:
        try:
            read = text.decode().rstrip("\r\n")
        except UnicodeDecodeError as error:
            said = f"byte {text[error.start]:#04x} is not UTF-8; give a text file, saved in UTF-8"
            raise self.row_error(self.path, lines.number, "not UTF-8", said) from error
        if "\0" in read:
            said = "NUL is no text; give a text file, saved in UTF-8"
            raise self.row_error(self.path, lines.number, "not text", said)
        return read

    def _quoted(self, read: str, lines: Lines) -> list[str]:
        line = lines.number

        def parts() -> Iterator[str]:
            yield f"{read}\n"
            for _ in range(_MOST_LINES):
                if not (text := lines.read()):
                    break
                yield f"{self._decoded(text, lines)}\n"
            raise csv.Error("a quote is not closed")

        try:
            return next(csv.reader(parts()))
        except csv.Error as error:
            raise self.row_error(self.path, line, "not CSV", f"not CSV: {error}") from error


class Lines:
    """The lines of a file, read one after the other.

    Attributes
    ----------
    offset, number : where the next line begins, and how many lines are before it.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.offset = self.number = 0

    def read(self) -> bytes:
        """The next line; nothing at the end."""
        text = self._file.readline(MOST_LINE_BYTES + 1)
        self.offset += len(text)
        self.number += bool(text)
        return text

    def go_to(self, offset: int, number: int) -> None:
        """Read on there."""
        if offset != self.offset:
            self._file.seek(offset)
            self.offset = offset
        self.number = number


class _Index(NamedTuple):
    """By row: its moment, where it stands, and what it has in common with others of the same thing."""

    moments: NDArray[np.float64]
    offsets: NDArray[np.int64]
    numbers: NDArray[Any]
    keys: NDArray[np.int64]


def _as_numpy(values: array[Any]) -> NDArray[Any]:
    return np.frombuffer(values, values.typecode) if values else np.empty(0, values.typecode)


def _groups(found: _Index) -> Iterator[tuple[float, list[int]]]:
    """Rows with the same key and their first moment, in the order of these; rows of one moment as they stand."""
    if not len(found.keys):
        return
    by_key = np.lexsort((found.moments, found.keys))
    keys = found.keys[by_key]
    begins = np.flatnonzero(np.concatenate(([True], keys[1:] != keys[:-1])))
    ends = np.append(begins[1:], len(keys))
    first_s = np.minimum.reduceat(found.moments[by_key], begins)
    for group in np.lexsort((by_key[begins], first_s)).tolist():
        yield float(first_s[group]), by_key[begins[group] : ends[group]].tolist()
