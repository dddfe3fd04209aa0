"""How many files and connections this process may have open."""

from __future__ import annotations

import resource

__all__ = ["allow_open_files"]


def allow_open_files(wanted: int) -> None:
    """Raise the limit on open files to this number, as far as the system lets this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
