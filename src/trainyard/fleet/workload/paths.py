"""Paths that jobs of the own form name."""

from __future__ import annotations

from pathlib import Path

from trainyard.reading.rows import Row


def absolute(row: Row, name: str, path: str) -> str:
    """An absolute path; one that is not begins at the folder of the file of jobs.

    Parameters
    ----------
    name : of the field that says it.

    Raises
    ------
    FleetError
        If it is not absolute, and the job comes in no file.
    """
    if "\0" in path or (not Path(path).is_absolute() and not row.path.is_file()):
        raise row.error(name, "an absolute path, for a job that comes in no file")
    return str(row.path.absolute().parent / path)
