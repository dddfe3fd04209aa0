"""Whether what a run makes is for its user alone."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def usual_umask() -> Iterator[None]:
    """Within it, what is made without care is readable by all."""
    before = os.umask(0o022)
    try:
        yield
    finally:
        assert os.umask(before) == 0o022


def wrong_modes(folder: Path) -> dict[str, str]:
    """The modes that a folder and all in it should not have."""
    found = {}
    for path in (folder, *folder.rglob("*")):
        mode = path.lstat().st_mode
        allowed = 0o700 if stat.S_ISDIR(mode) else 0o600
        if not stat.S_ISLNK(mode) and stat.S_IMODE(mode) != allowed:
            found[str(path)] = stat.filemode(mode)
    return found
