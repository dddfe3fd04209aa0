"""Limit of requests that wait for their first token."""

from __future__ import annotations

from trainyard.serve.run.server.api_error import ApiError

__all__ = ["QueueLimit"]

_RETRY_AFTER_S = 1
_REASONS = {"requests": "max_num_queued_reqs", "tokens": "max_num_queued_tokens"}


class QueueLimit:
    """Counts the requests of a model that have no token yet, and refuses more than allowed. An empty queue takes all.

    Parameters
    ----------
    max_requests, max_tokens : that may wait, with tokens of their prompts; None for any number.

    Attributes
    ----------
    num_rejected : how often requests were refused, by the option of the server that has the limit.
    """

    def __init__(self, max_requests: int | None, max_tokens: int | None) -> None:
        self._max_requests, self._max_tokens = max_requests, max_tokens
        self.num_requests = self.num_tokens = 0
        self.num_rejected = dict.fromkeys(_REASONS.values(), 0)

    def enter(self, num_requests: int, num_tokens: int) -> None:
        """Let requests wait.

        Raises
        ------
        ApiError
            If too many would.
        """
        for what, now, more, most in (
            ("requests", self.num_requests, num_requests, self._max_requests),
            ("tokens", self.num_tokens, num_tokens, self._max_tokens),
        ):
            if most is not None and now and now + more > most:
                self.num_rejected[_REASONS[what]] += 1
                raise ApiError(
                    429,
                    f"{now} {what} wait and {more} more would; allowed are {most}; send the request again later",
                    code="queue_full",
                    retry_after_s=_RETRY_AFTER_S,
                )
        self.num_requests += num_requests
        self.num_tokens += num_tokens

    def leave(self, num_tokens: int) -> None:
        """Note that a request waits no longer."""
        self.num_requests -= 1
        self.num_tokens -= num_tokens
