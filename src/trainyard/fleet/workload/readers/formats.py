"""What a trace format is, and how a file is recognised to be of one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from trainyard.fleet.errors import FleetError
from trainyard.fleet.workload.job import Job
from trainyard.reading import plain_beginning, raised_as

_HEAD_BYTES = 65536


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
        FleetError
            If there is no such file, or it is of a kind that is refused.
        """
        with raised_as(FleetError):
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


@dataclass(frozen=True)
class Format:
    """A trace format.

    Attributes
    ----------
    name : for ``read_workload`` and the command line.
    about : one line.
    matches : whether a file that begins so is of it.
    read : the jobs of a file in the order of arrival; ``left_out`` gets the rows that give none, and ``profiles`` is
        where these are.
    profiles : what that is, where there are such; empty where a trace says all.
    needs_profiles : whether it cannot do without.
    by_type : whether profiles are files by device type; then ``read`` takes ``device_types`` of the cluster, too.
    is_dated : whether times are dates; then ``read`` takes the ``zone`` of those that name none, too, and gives jobs
        with seconds since 1970.
    timezone : of those, where the format fixes it.
    may_overlap : whether files of one folder may have the same job: one of the same name that was submitted at the same
        moment.
    """

    name: str
    about: str
    matches: Callable[[Head], bool]
    read: Callable[..., Iterator[Job]]
    profiles: str = ""
    needs_profiles: bool = False
    by_type: bool = False
    is_dated: bool = False
    timezone: str = ""
    may_overlap: bool = False


def has_columns(*names: str, without: tuple[str, ...] = ()) -> Callable[[Head], bool]:
    """Whether the first line names these columns, and none of others."""

    def matches(head: Head) -> bool:
        columns = head.columns()
        return columns.issuperset(names) and columns.isdisjoint(without)

    return matches
