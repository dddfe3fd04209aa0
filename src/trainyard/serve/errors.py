"""The error of this level."""

from __future__ import annotations


class ServeError(ValueError):
    """Something given to the serving level that cannot be; the message says what is allowed."""
