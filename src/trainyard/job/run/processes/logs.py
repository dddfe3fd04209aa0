"""Logs of a run, and their limits: a process that prints for ever fills no disk."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from trainyard.private import make_private, opener

__all__ = [
    "MOST_BYTES",
    "Metrics",
    "RollingFile",
    "cut",
    "end_of",
    "last_lines",
    "metrics_files",
    "print_to",
    "profile_file",
    "rank_log",
]

MOST_BYTES = 64 * 2**20
"""Of a log; see `cut` and `RollingFile`."""

_LINE_BYTES = 1024  # that few lines exceed
_CUT = b"\n[what was printed here is left out, because this log had grown to %d bytes]\n"


def rank_log(logs: Path, rank: int) -> Path:
    """The file of what a rank prints."""
    return logs / f"rank-{rank}.log"


def profile_file(logs: Path, rank: int) -> Path:
    """The file of the ops that a rank recorded."""
    return logs / f"profile-{rank}.json"


def print_to(log: Path) -> None:
    """Send what this process prints to a file."""
    sys.stdout.flush()
    sys.stderr.flush()
    file = opener(str(log), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.close(file)


def metrics_files(logs: Path) -> tuple[Path, ...]:
    """The files of metrics that there are, older ones first."""
    return tuple(file for file in (logs / "metrics.1.jsonl", logs / "metrics.jsonl") if file.exists())


def end_of(log: Path, most_bytes: int) -> bytes:
    """The last bytes of a log, which may begin within a line; none if it is not there."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - most_bytes))
            return file.read()
    except FileNotFoundError:
        return b""


def last_lines(log: Path, num_lines: int) -> list[str]:
    """The last lines of a log, fewer if they are very long; none if it is not there."""
    return end_of(log, num_lines * _LINE_BYTES).decode(errors="replace").splitlines()[-num_lines:]


def cut(logs: Iterable[Path], most_bytes: int = MOST_BYTES) -> None:
    """Keep a quarter of a log's size from its beginning and from its end, where it has grown over a size.

    Processes may go on printing meanwhile, if they append; of what they print in that moment, some may be lost.
    """
    for log in logs:
        try:
            size = log.stat().st_size
            if size <= most_bytes:
                continue
            with log.open("rb") as file:
                file.seek(-(most_bytes // 4), os.SEEK_END)
                end = file.read(most_bytes // 4)
            os.truncate(log, most_bytes // 4)
            with log.open("ab") as file:
                file.write(_CUT % size + end.partition(b"\n")[2])
        except OSError:  # it is not there yet, or cannot be changed now
            continue


class RollingFile:
    """A file to which lines are added, with a limit.

    When it has grown over a size it becomes the older one (``x.1.csv`` of ``x.csv``), in the place of that.

    Parameters
    ----------
    path : in a folder that exists.
    goes_on : whether to add to the file that is there, if it begins with the header; else it becomes the older one.
    header : first line of every file.
    """

    def __init__(self, path: Path, goes_on: bool, most_bytes: int = MOST_BYTES, header: bytes = b"") -> None:
        self.path, self._most_bytes, self._header = path, most_bytes, header
        if path.exists() and path.stat().st_size and not (goes_on and _begins_with(path, header)):
            path.replace(_older(path))
        self._handle = self._opened()
        self._is_cut_off = _ends_within_a_line(path)  # by a process that was killed

    def write(self, line: bytes) -> None:
        """Add a line, which ends with its sign.

        Raises
        ------
        OSError
            If there is no room for it, or for all of it; the next line begins a new one.
        """
        line = b"\n" * self._is_cut_off + line
        while line:
            line = line[os.write(self._handle, line) :]
            self._is_cut_off = bool(line)
        if os.fstat(self._handle).st_size > self._most_bytes:
            self.path.replace(_older(self.path))
            new = self._opened()
            self.close()
            self._handle = new

    def close(self) -> None:
        """No more follows."""
        os.close(self._handle)

    def _opened(self) -> int:
        handle = opener(str(self.path), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        if self._header and not os.fstat(handle).st_size:
            os.write(handle, self._header)
        return handle


def _older(path: Path) -> Path:
    return path.with_suffix(f".1{path.suffix}")


def _begins_with(path: Path, header: bytes) -> bool:
    with path.open("rb") as stream:
        return stream.read(len(header)) == header


class Metrics:
    """The file ``metrics.jsonl``, to which every step adds a line.

    When it has grown over a size it becomes ``metrics.1.jsonl``, in the place of the one that was there.

    Parameters
    ----------
    folder : made if it is not there.
    goes_on : whether to add to the file that is there; else it is begun anew.
    """

    def __init__(self, folder: Path, goes_on: bool, most_bytes: int = MOST_BYTES) -> None:
        make_private(folder)
        if not goes_on:
            for file in metrics_files(folder):
                file.unlink()
        self._file = RollingFile(folder / "metrics.jsonl", True, most_bytes)

    def write(self, entry: Mapping[str, Any]) -> None:
        """Add a line.

        Raises
        ------
        OSError
            If there is no room for it, or for all of it; the next line begins a new one.
        """
        self._file.write(json.dumps(entry).encode() + b"\n")

    def close(self) -> None:
        """No more follows."""
        self._file.close()


def _ends_within_a_line(file: Path) -> bool:
    with file.open("rb") as stream:
        if not stream.seek(0, os.SEEK_END):
            return False
        stream.seek(-1, os.SEEK_END)
        return stream.read() != b"\n"
