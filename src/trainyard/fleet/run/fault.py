"""Faults while jobs are driven: of one job, or of something that all jobs need."""

from __future__ import annotations

import errno

from trainyard.fleet.errors import FleetError
from trainyard.fleet.workload.level1 import UnansweredError

__all__ = ["BackendError", "is_disk_fault", "is_infrastructure_fault"]

# The disk is full or gone; there are no descriptors, processes or memory left.
_DISK = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.ESTALE})
_INFRASTRUCTURE = _DISK | {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN}


class BackendError(FleetError):
    """Something that a backend needs does not answer now, by no fault of a job; it may answer later."""


def is_infrastructure_fault(error: BaseException) -> bool:
    """Whether an error says that what all jobs need is not there now, so that no job is to blame."""
    return isinstance(error, BackendError | UnansweredError | MemoryError) or (
        isinstance(error, OSError) and error.errno in _INFRASTRUCTURE
    )


def is_disk_fault(error: BaseException | None) -> bool:
    """Whether an error, or one from which it follows, says that the disk is full or gone.

    That is no fault of the process in which it is raised, as a lack of memory may be.
    """
    while error is not None and not (isinstance(error, OSError) and error.errno in _DISK):
        error = error.__cause__
    return error is not None
