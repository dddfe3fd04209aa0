"""One line of a table: what it says, and what to raise where it cannot be used."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple
from zoneinfo import ZoneInfo

from trainyard.reading.errors import shown
from trainyard.reading.left_out import RowError
from trainyard.reading.limits import LARGEST_NUMBER

_LARGEST_WHOLE = 2**53  # beyond, not every whole number is one of 64 bits with a point
_FEWEST_DIGITS = 9  # of seconds since 1970; dates are written with eight


class Row(NamedTuple):
    """One line, or several that belong together because a text in them has line breaks.

    Attributes
    ----------
    path, line : where it stands; lines are counted from 1.
    fields : what it says, by column.
    row_error : what to raise where it cannot be used.
    """

    path: Path
    line: int
    fields: dict[str, str]
    row_error: type[RowError] = RowError

    def error(self, name: str, allowed: str) -> RowError:
        """What to raise about a field."""
        given = self.fields.get(name, "")
        field = f"field {shown(name)}"
        return self.row_error(
            self.path,
            self.line,
            f"{field} cannot be used",
            f"got {shown(given)}, allowed is {allowed}",
            f", {field}",
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

    def moment_s(self, name: str, zone: ZoneInfo | None = None, not_before_s: float = -math.inf) -> float:
        """Seconds since 1970 of a date and time, as `moment_s` has it."""
        try:
            return moment_s(self.fields[name], zone, not_before_s)
        except ValueError:
            raise self.error(
                name, "a date and time such as 2017-10-09 07:01:55, or seconds since 1970"
            ) from None


def moment_s(text: str, zone: ZoneInfo | None = None, not_before_s: float = -math.inf) -> float:
    """Seconds since 1970 of a date and time, or of such seconds.

    Parameters
    ----------
    zone : of times that name none. Without, they are taken as UTC: where clocks are put forward or back meanwhile,
        times before and after that are an hour too far apart or too near.
    not_before_s : which of two moments it is where clocks were put back, and an hour came twice: the first one if that
        is not before, else the second one if that is not.

    Raises
    ------
    ValueError
        If it is none.
    """
    if len(text) >= _FEWEST_DIGITS and text.replace(".", "", 1).isdecimal():
        seconds = float(text)
        if seconds > LARGEST_NUMBER:
            raise ValueError(text)
        return seconds
    value = datetime.fromisoformat(text)
    if value.tzinfo is not None:
        return value.timestamp()
    if zone is None:
        return value.replace(tzinfo=UTC).timestamp()
    first, second = (value.replace(tzinfo=zone, fold=fold).timestamp() for fold in (0, 1))
    return second if first < not_before_s <= second else first


def names_no_zone(text: str) -> bool:
    """Whether this is a date and time of a zone that it does not name."""
    try:
        return not text.isdecimal() and datetime.fromisoformat(text).tzinfo is None
    except ValueError:
        return False


def _and_at_most(value: float, most: float) -> str:
    """The upper end of what is allowed, where it was passed."""
    return f" and at most {most:,}" if value > most else ""
