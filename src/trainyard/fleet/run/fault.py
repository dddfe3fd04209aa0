"""Whose fault it is when something goes wrong while jobs are driven: a job's, or that of what all jobs need."""

from __future__ import annotations

import errno

from trainyard.fleet.site import FleetError
from trainyard.fleet.workload.level1 import UnansweredError

__all__ = ["EngineError", "is_everybodys", "one_line"]

# The disk is full or gone, there are no descriptors, processes or memory left.
_EVERYBODYS = frozenset(
    {
        errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.ESTALE, errno.EMFILE, errno.ENFILE, errno.ENOMEM,
        errno.EAGAIN,
    }
)  # fmt: skip
_LONGEST = 500


class EngineError(FleetError):
    """What an engine needs does not answer now, which is no job's fault; asked later it may."""


def is_everybodys(error: BaseException) -> bool:
    """Whether an error says that what all jobs need is not there now, so that no job is to blame."""
    return isinstance(error, EngineError | UnansweredError | MemoryError) or (
        isinstance(error, OSError) and error.errno in _EVERYBODYS
    )


def one_line(error: BaseException) -> str:
    """An error as a reason, in one line of bounded length."""
    text = " ".join(str(error).split()) or "no reason was given"
    text = text if isinstance(error, FleetError) else f"{type(error).__name__}: {text}"
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} ..."
