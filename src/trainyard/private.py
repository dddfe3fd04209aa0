"""Files that are for the user alone who made them."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["OTHERS", "make_private", "only_for_user", "opener", "require_private", "write_private"]

_FOLDER, _FILE = 0o700, 0o600
OTHERS = 0o077
"""Bits of a mode that say what others than the owner may do."""


def make_private(folder: Path) -> None:
    """Make a folder, and those above it, for this user alone; what is there already keeps its mode."""
    for parent in reversed((folder, *folder.parents)):
        if not parent.is_dir():
            parent.mkdir(_FOLDER, exist_ok=True)


def opener(path: str, flags: int) -> int:
    """For ``open(..., opener=opener)``: what that makes is for this user alone."""
    return os.open(path, flags, _FILE)


def write_private(path: Path, text: str) -> None:
    """Write a file for this user alone."""
    with open(path, "w", encoding="utf-8", opener=opener) as file:
        file.write(text)


@contextmanager
def only_for_user() -> Iterator[None]:
    """Within it, whatever this process and those that it starts make is for this user alone."""
    before = os.umask(OTHERS)
    try:
        yield
    finally:
        os.umask(before)


def require_private(path: Path) -> None:
    """Check that a file with a secret is for its owner alone.

    Raises
    ------
    ValueError
        If others may read or change it.
    """
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & OTHERS:
        raise ValueError(
            f"{path} holds a secret, and its mode {mode:o} lets others read or change it; "
            f"make it its owner's alone: chmod 600 {path}"
        )
