"""Errors of work that is done in another process. Each message is a predicate: its subject is the work."""

from __future__ import annotations

from typing import ClassVar

__all__ = [
    "CpuLimitError",
    "LimitError",
    "LimitedProcessError",
    "MemoryLimitError",
    "ProcessLostError",
    "WorkError",
]


class LimitedProcessError(Exception):
    """A piece of work has no result.

    Attributes
    ----------
    may_succeed_later : whether the work is not at fault, so that it may be tried again.
    """

    may_succeed_later: ClassVar[bool] = False


class LimitError(LimitedProcessError):
    """A piece of work needs more than it may have."""


class CpuLimitError(LimitError):
    """A piece of work uses more CPU seconds than it may."""


class MemoryLimitError(LimitError):
    """A piece of work needs more memory than it may have, or crashes its process."""


class ProcessLostError(LimitedProcessError):
    """The process did not start, was killed by others, or used no CPU; the same work may succeed later."""

    may_succeed_later = True


class WorkError(LimitedProcessError):
    """A piece of work raised an error.

    Parameters
    ----------
    kind : name of the type of the error.
    message : what the error says.
    """

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(f"fails with {kind}: {message}" if message else f"fails with {kind}")
        self.kind, self.message = kind, message
