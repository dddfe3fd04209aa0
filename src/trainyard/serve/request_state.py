"""How far a request is: what policies see of it while it is served."""

from __future__ import annotations

from collections.abc import Hashable

from trainyard.serve.requests.request import Request

__all__ = ["RequestState"]


class RequestState:
    """A request that came and has not left.

    A sequence is its prompt and the tokens that were generated. Of these, the first ``num_computed`` are in the cache. A
    step computes the next ones; when it comes to the last one, it generates one more. So a prefill in one piece or in
    chunks, a decode (one token), and the prefill of a sequence that was preempted are the same thing.

    Attributes
    ----------
    number : that no other request has.
    request : what its client said.
    arrival_s : when it came.
    num_tokens : of the sequence.
    most_tokens : the sequence ends when it has so many: its client takes no more, or the model has no room for more.
    num_generated : tokens that were generated, the last of which is not in the cache.
    num_computed : tokens in the cache; those of a step count from its end on.
    num_in_step : tokens that the step computes that runs now; 0 if it is in none.
    blocks : those of the cache that it holds, in the order of its tokens.
    tokens : of the sequence, where they are known; else empty.
    keys : of its full blocks, as far as they were asked for.
    num_preemptions : how often it lost its blocks.
    num_hits : tokens that were in the cache when it was admitted for the first time.
    scheduled_s, first_token_s, finished_s : when it was first in a step, and when those of its first and its last token
        ended; NaN before.
    """

    __slots__ = (
        "arrival_s",
        "blocks",
        "finished_s",
        "first_token_s",
        "keys",
        "most_tokens",
        "num_computed",
        "num_generated",
        "num_hits",
        "num_in_step",
        "num_preemptions",
        "num_tokens",
        "number",
        "request",
        "scheduled_s",
        "tokens",
    )

    def __init__(self, number: int, request: Request, arrival_s: float) -> None:
        self.number, self.request, self.arrival_s = number, request, arrival_s
        self.num_tokens = request.prompt_tokens
        self.most_tokens = request.prompt_tokens + request.max_tokens
        self.num_generated = self.num_computed = self.num_in_step = self.num_preemptions = self.num_hits = 0
        self.blocks: list[int] = []
        self.tokens: list[int] = list(request.prompt_ids)
        self.keys: list[Hashable] = []
        self.scheduled_s = self.first_token_s = self.finished_s = float("nan")

    @property
    def is_finished(self) -> bool:
        """Whether it has all its tokens."""
        return self.finished_s == self.finished_s  # not NaN

    @property
    def decodes(self) -> bool:
        """Whether only its newest token is not in the cache."""
        return self.num_generated > 0 and self.num_tokens - self.num_computed == 1

    def __repr__(self) -> str:
        return f"<request {self.request.name}: {self.num_computed} of {self.num_tokens} tokens computed>"
