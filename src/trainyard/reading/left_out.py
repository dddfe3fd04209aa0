"""Rows of a table that cannot be used, counted by reason."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainyard.reading.errors import ReadingError

_MOST_PLACES = 3
_TOLERATED_SHARE = 0.03


class RowError(ReadingError):
    """A row that cannot be read.

    Attributes
    ----------
    path, line : where it stands; lines are counted from 1.
    reason : of what kind the fault is, in words; rows with the same one are counted together.
    said : what is wrong with this one.
    """

    def __init__(self, path: Path, line: int, reason: str, said: str, field: str = "") -> None:
        super().__init__(f"{path}, line {line}{field}: {said}")
        self.path, self.line, self.reason, self.said = path, line, reason, f": {said}"


@dataclass
class Reason:
    """Rows that were left out for one reason.

    Attributes
    ----------
    text : the reason, in words.
    is_fault : whether the rows cannot be read; others can, and are not what is looked for.
    count : how many rows.
    places : where the first of them stand.
    example : what is wrong with the first one; "" where the reason says all.
    """

    text: str
    is_fault: bool
    count: int = 0
    places: list[str] = field(default_factory=list)
    example: str = ""

    @property
    def where(self) -> str:
        """The places of the first rows, and the fault of the first one; "" if they are not noted."""
        if not self.places:
            return ""
        more = self.places[1:] + ["..."] * (self.count > len(self.places))
        between = "; " if self.example and more else ", " if more else ""
        return f"{self.places[0]}{self.example}{between}{', '.join(more)}"

    def __str__(self) -> str:
        rows = "1 row" if self.count == 1 else f"{self.count:,} rows"
        return f"{rows}: {self.text}" + (f" ({self.where})" if self.where else "")


class LeftOut:
    """Rows that are not used, by reason; it fills while a table is read, and is whole when all that it has was taken.

    Then the rows that were read are those that were used, and those that were left out.

    Parameters
    ----------
    strict : raise the error of the first row that cannot be read, instead of leaving it out.
    names_files : whether places name the file.

    Attributes
    ----------
    remarks : what else is to be said of how the trace was read.
    """

    def __init__(self, *, strict: bool = False, names_files: bool = False) -> None:
        self.num_rows = self.num_used = 0
        self.remarks: list[str] = []
        self._strict, self._names_files = strict, names_files
        self._reasons: dict[tuple[str, bool], Reason] = {}

    @property
    def reasons(self) -> tuple[Reason, ...]:
        """Reasons, rows that cannot be read first, then the most frequent ones."""
        return tuple(sorted(self._reasons.values(), key=lambda each: (not each.is_fault, -each.count)))

    @property
    def num_left_out(self) -> int:
        return sum(each.count for each in self._reasons.values())

    @property
    def num_faults(self) -> int:
        """Rows that cannot be read."""
        return sum(each.count for each in self._reasons.values() if each.is_fault)

    def add(self, text: str, path: Path, *lines: int) -> None:
        """Leave out rows that are not what is looked for."""
        self._count(text, False, path, lines)

    def add_fault(self, error: RowError, *lines: int) -> None:
        """Leave out rows that cannot be read: one, or all that are parts of the same thing.

        Raises
        ------
        RowError
            If that is not to be.
        """
        if self._strict:
            raise error
        reason = self._count(error.reason, True, error.path, lines or (error.line,))
        reason.example = reason.example or error.said

    def add_named(self, text: str, name: str) -> None:
        """Leave out what was made of rows, by its name."""
        reason = self._reasons.setdefault((text, False), Reason(text, False))
        reason.count += 1
        if len(reason.places) < _MOST_PLACES:
            reason.places.append(name)

    def add_rest(self, text: str) -> None:
        """Leave out all rows that were read and have not been counted yet."""
        rest = self.num_rows - self.num_used - self.num_left_out
        if rest:
            self._reasons.setdefault((text, False), Reason(text, False)).count += rest

    @contextmanager
    def faults(self) -> Iterator[None]:
        """Leave out the row at which a `RowError` is raised."""
        try:
            yield
        except RowError as error:
            self.add_fault(error)

    def _count(self, text: str, is_fault: bool, path: Path, lines: tuple[int, ...]) -> Reason:
        reason = self._reasons.setdefault((text, is_fault), Reason(text, is_fault))
        reason.count += len(lines)
        for line in lines[: _MOST_PLACES - len(reason.places)]:
            reason.places.append(f"{path.name}, line {line}" if self._names_files else f"line {line}")
        return reason

    def lines(self) -> tuple[str, ...]:
        """Return lines for a person: how many of how many rows, a line for each reason, and remarks."""
        if not self._reasons:
            return tuple(self.remarks)
        first = f"left out: {self.num_left_out:,} of {self.num_rows:,} rows"
        return (first, *(f"  {each}" for each in self.reasons), *self.remarks)

    @property
    def warning(self) -> str:
        """A warning that many rows cannot be read; "" if few or none are."""
        if self.num_faults <= _TOLERATED_SHARE * self.num_rows:
            return ""
        return (
            f"warning: {self.num_faults:,} of {self.num_rows:,} rows cannot be read; what is simulated may not be what "
            "ran. --strict stops at the first of them"
        )

    def document(self, used_as: str) -> Mapping[str, Any]:
        """The same for programs.

        Parameters
        ----------
        used_as : what rows give, such as ``jobs``.
        """
        return {
            "num_rows": self.num_rows,
            f"num_{used_as}": self.num_used,
            "remarks": self.remarks,
            "left_out": [
                {
                    "reason": each.text,
                    "cannot_be_read": each.is_fault,
                    "num_rows": each.count,
                    "first": list(each.places),
                    "example": each.example,
                }
                for each in self.reasons
            ],
        }


def warn_of_rows(left_out: LeftOut) -> None:
    """Warn a caller of a public function where many rows cannot be read."""
    if left_out.warning:
        warnings.warn(left_out.warning.removeprefix("warning: "), stacklevel=3)
