"""Paths in jobs of Trainyard's own form."""

from __future__ import annotations

from pathlib import Path

from trainyard.reading.rows import Row


def absolute_path(row: Row, name: str, path: str) -> str:
    """Return a path as an absolute one; a relative path begins at the folder of the file of jobs.

    Parameters
    ----------
    name : of the field with the path.

    Raises
    ------
    FleetError
        If the path is relative and the job comes in no file, or has a null character.
    """
    if "\0" in path or (not Path(path).is_absolute() and not row.path.is_file()):
        raise row.error(name, "an absolute path, for a job that comes in no file")
    return str(row.path.absolute().parent / path)
