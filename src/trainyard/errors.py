"""The base of the errors that Trainyard raises for what a user gives or asks for."""

from __future__ import annotations

__all__ = ["TrainyardError"]


class TrainyardError(Exception):
    """An error that its message explains: what was given, what is allowed, what to do.

    Each error is one of Python's own kinds, too: a `ValueError`, a `TypeError` or a `RuntimeError`.
    """
