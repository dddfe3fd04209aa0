"""Locks of folders: where a file is locked, it may be deleted and made anew, and then two hold it."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["NO_LOCKS", "can_share", "lock_folder", "locked_folder"]

NO_LOCKS = frozenset((errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL))
"""What a file system says that knows no locks."""
_NO_LOCKS_OF_FOLDERS = NO_LOCKS | {errno.EBADF, errno.EISDIR}  # NFS locks what is open for writing


def lock_folder(folder: Path, how: int = fcntl.LOCK_EX) -> int | None:
    """Lock a folder itself, beside a file in it, without waiting.

    Returns
    -------
    int | None
        A descriptor; the lock is held until that and its copies in other processes are closed. None where the file system
        locks no folders.

    Raises
    ------
    BlockingIOError
        If others hold it.
    """
    found = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(found, how | fcntl.LOCK_NB)
    except OSError as error:
        os.close(found)
        if error.errno in _NO_LOCKS_OF_FOLDERS:
            return None
        raise
    return found


@contextmanager
def locked_folder(folder: Path, how: int = fcntl.LOCK_EX) -> Iterator[None]:
    """Hold a folder; see `lock_folder`."""
    held = lock_folder(folder, how)
    try:
        yield
    finally:
        if held is not None:
            os.close(held)


def can_share(descriptor: int) -> bool:
    """Whether nobody holds a file alone; the file is left unlocked.

    Others may share it for a moment, to look whether somebody holds it. On a busy machine a moment may be long.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    fcntl.flock(descriptor, fcntl.LOCK_UN)
    return True
