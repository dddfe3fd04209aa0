"""What is kept between runs to be faster: where it cannot be read or written, work goes on without, and says so once."""

from __future__ import annotations

import sys

__all__ = ["go_without"]

_told: set[str] = set()


def go_without(what: str, where: object, error: Exception) -> None:
    """Say once in a process that something is not kept, or that what was kept cannot be used.

    Parameters
    ----------
    what : such as "measurements of this machine".
    where : its folder or file.
    error : why.
    """
    if what not in _told:
        _told.add(what)
        print(f"goes on without remembered {what}: {where}: {type(error).__name__} {error}", file=sys.stderr)
