"""Why the daemon does not do what it is asked for."""

from __future__ import annotations


class Refusal(Exception):  # noqa: N818  (it is an answer)
    """An answer that is no success.

    Parameters
    ----------
    status : of HTTP.
    message : what was asked for, and what is allowed.
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
