"""How far a request is: what policies see of it while it is served."""

from __future__ import annotations

from collections.abc import Hashable

from trainyard.serve.requests.request import Request

__all__ = ["RequestState"]


class RequestState:
    """A request that came and has not left, or one of its samples.

    A sequence is its prompt and the tokens that were generated. Of these, the first ``num_computed`` are in the cache. A
    step computes the next ones; when it comes to the last one, it generates one more. So a prefill in one piece or in
    chunks, a decode (one token), and the prefill of a sequence that was preempted are the same thing.

    Where a client wants several answers to a prompt, a request is one sequence until the prompt is computed, and then
    one for each answer. These have all blocks of the prompt together, until one of them writes in the last one.

    Attributes
    ----------
    number : that no other request or sample has.
    request : what its client said.
    samples : all sequences of its request, the first one first; empty while, or where, it has only one.
    request_number : how many requests were read before its request.
    arrival_s : when it came.
    rank : which one of its instance's data-parallel ranks has it.
    num_tokens : of the sequence.
    max_num_tokens : the sequence ends when it has so many: its client takes no more, or the model has no room for more.
    num_generated : tokens that were generated, the last of which is not in the cache.
    num_computed : tokens in the cache; those of a step count from its end on.
    num_in_step : tokens that the step computes that runs now; 0 if it is in none.
    blocks : those of the device's cache that it holds, in the order of its tokens.
    host_blocks : those of the host that it holds while it is swapped out, in this order.
    tokens : of the sequence, where they are known; else empty.
    keys : of its full blocks, as far as they were asked for.
    num_preemptions : how often it lost its blocks.
    num_cached_tokens : tokens that were in the cache when it was admitted for the first time.
    scheduled_s, first_token_s, finished_s : when it was first in a step, and when those of its first and its last token
        ended; NaN before.
    """

    __slots__ = (
        "arrival_s",
        "blocks",
        "finished_s",
        "first_token_s",
        "host_blocks",
        "keys",
        "max_num_tokens",
        "num_cached_tokens",
        "num_computed",
        "num_generated",
        "num_in_step",
        "num_preemptions",
        "num_tokens",
        "number",
        "rank",
        "request",
        "request_number",
        "samples",
        "scheduled_s",
        "tokens",
    )

    def __init__(
        self, number: int, request: Request, arrival_s: float, request_number: int | None = None
    ) -> None:
        self.number, self.request, self.arrival_s = number, request, arrival_s
        self.request_number = number if request_number is None else request_number
        self.samples: tuple[RequestState, ...] = ()
        self.rank = 0
        self.num_tokens = request.prompt_tokens
        self.max_num_tokens = request.prompt_tokens + request.max_tokens
        self.num_generated = self.num_computed = self.num_in_step = self.num_preemptions = (
            self.num_cached_tokens
        ) = 0
        self.blocks: list[int] = []
        self.host_blocks: list[int] = []
        self.tokens: list[int] = list(request.prompt_ids)
        self.keys: list[Hashable] = []
        self.scheduled_s = self.first_token_s = self.finished_s = float("nan")

    @property
    def is_finished(self) -> bool:
        """Whether it has all its tokens."""
        return self.finished_s == self.finished_s  # not NaN

    @property
    def sequences(self) -> tuple[RequestState, ...]:
        """All sequences of its request, the first one first: its samples, or itself where it has no others."""
        return self.samples or (self,)

    @property
    def has_ended(self) -> bool:
        """Whether its request has all its tokens: those of all samples."""
        return self.is_finished and all(each.is_finished for each in self.samples)

    @property
    def num_to_fork(self) -> int:
        """Samples that it will become beside itself when its prompt is computed."""
        return 0 if self.samples else self.request.num_samples - 1

    def fork(self) -> tuple[RequestState, ...]:
        """It becomes all samples of its request; returns the others, which are as far as it is and have no blocks."""
        others = tuple(
            RequestState(number, self.request, self.arrival_s, self.request_number)
            for number in range(self.number + 1, self.number + self.request.num_samples)
        )
        for each in others:
            each.num_computed, each.num_cached_tokens = self.num_computed, self.num_cached_tokens
            each.max_num_tokens, each.scheduled_s = self.max_num_tokens, self.scheduled_s
            each.keys, each.rank = list(self.keys), self.rank
        if others:
            for each in (self, *others):
                each.samples = (self, *others)
        return others

    @property
    def decodes(self) -> bool:
        """Whether only its newest token is not in the cache."""
        return self.num_generated > 0 and self.num_tokens - self.num_computed == 1

    def __repr__(self) -> str:
        return f"<request {self.request.name}: {self.num_computed} of {self.num_tokens} tokens computed>"
