"""Why the daemon does not do what it is asked for."""

from __future__ import annotations


class Refusal(Exception):  # noqa: N818  (it is an answer)
    """An answer that is no success.

    Parameters
    ----------
    status : of HTTP.
    message : what was asked for, and what is allowed.
    retry_s : after how many seconds the same may be granted; 0 says nothing of that.
    """

    def __init__(self, status: int, message: str, retry_s: int = 0) -> None:
        super().__init__(message)
        self.status, self.retry_s = status, retry_s
