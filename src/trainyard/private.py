"""Files that are for the user alone who made them, and secrets by which a server knows its users."""

from __future__ import annotations

import hmac
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

__all__ = [
    "OTHERS",
    "make_private",
    "only_for_user",
    "opener",
    "owner_of_bearer",
    "require_private",
    "write_private",
]

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


def require_private(path: Path, opened: int) -> None:
    """Check that a file with a secret is for this user alone.

    Parameters
    ----------
    opened : a descriptor of what was opened at the path, where there may be another file by now.

    Raises
    ------
    ValueError
        If others may read or change it.
    """
    found = os.fstat(opened)
    if found.st_uid != os.geteuid():
        raise ValueError(
            f"{path} holds a secret and belongs to another user, of number {found.st_uid}, who may read and change it; "
            "give a file of your own"
        )
    mode = stat.S_IMODE(found.st_mode)
    if mode & OTHERS:
        raise ValueError(
            f"{path} holds a secret, and its mode {mode:o} lets others read or change it; "
            f"make it its owner's alone: chmod 600 {path}"
        )


def owner_of_bearer(owner_of: Mapping[str, str], authorization: str) -> str | None:
    """Whose secret an ``Authorization`` header has, as ``Bearer SECRET``; None if nobody's.

    Parameters
    ----------
    owner_of : by secret.
    """
    scheme, _, given = authorization.partition(" ")
    # All are compared, and each in the same time, so that the time taken says nothing.
    same = [
        owner
        for secret, owner in owner_of.items()
        if hmac.compare_digest(secret.encode(), given.strip().encode("utf-8", "surrogateescape"))
    ]
    return same[0] if scheme.lower() == "bearer" and same else None
