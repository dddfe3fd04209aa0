"""Tables of requests, whose errors are `ServeError`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

from trainyard.reading import ReadingError, json_lines, left_out, parse_json, table
from trainyard.reading.rows import Row
from trainyard.serve.errors import ServeError


class RowError(left_out.RowError, ServeError):
    """A row of a trace that cannot be read."""


class Table(table.Table):
    """A trace of one row per request."""

    error: ClassVar[type[ValueError]] = ServeError
    row_error: ClassVar[type[left_out.RowError]] = RowError


class JsonLines(json_lines.JsonLines):
    """A trace of one JSON object per request."""

    error: ClassVar[type[ValueError]] = ServeError
    row_error: ClassVar[type[left_out.RowError]] = RowError


@contextmanager
def as_fault(row: Row) -> Iterator[None]:
    """An impossible request is an error of its row."""
    try:
        yield
    except RowError:
        raise
    except ServeError as error:
        raise RowError(row.path, row.line, "cannot be a request", str(error)) from error


def whole_numbers(row: Row, name: str) -> tuple[int, ...]:
    """A field that is a JSON list of whole numbers.

    Raises
    ------
    RowError
        If it is another.
    """
    try:
        values = parse_json(row.fields[name], row.path)
    except ReadingError:
        values = None
    if not isinstance(values, list) or not all(type(value) is int for value in values):
        raise row.error(name, "a list of whole numbers such as [3, 1, 4]")
    return tuple(values)
