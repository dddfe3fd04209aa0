"""The progress of a request: what policies see of it while it is served."""

from __future__ import annotations

from collections.abc import Hashable

from trainyard.serve.requests.request import Request

__all__ = ["RequestState"]


class RequestState:
    """A request that is waiting or being served, or one of its samples.

    Its sequence is the prompt and the tokens that were generated. The first ``num_computed`` are in the KV cache. A
    step computes the next ones; when it computes the last one, it generates one more. So a prefill, a chunk of a prefill,
    a decode (one token), and the prefill after a preemption are the same thing.

    If a client wants several answers to a prompt, a request is one sequence until the prompt is computed, and then one
    for each answer. These share the blocks of the prompt until one of them writes in the last block.

    Attributes
    ----------
    number : unique among all requests and samples.
    request : what its client asked for.
    samples : all sequences of its request; empty while there is only one.
    request_number : how many requests were read before its request.
    arrival_s : time of its arrival.
    route : numbers of the instances that it goes to: its prompt is computed on the first one, and its other tokens on the
        last one.
    rank : the data-parallel rank of its instance that has it.
    num_tokens : tokens of the sequence so far.
    max_num_tokens : tokens at which the sequence ends, by the limit of the client or of the model.
    num_prefill_tokens : tokens that are computed before it decodes: the prompt, or all that it had when it last lost its
        blocks and was to be computed again.
    num_generated : tokens generated so far, the last of which is not in the KV cache.
    num_computed : tokens in the KV cache; those of a step count when it ends.
    num_layers_done : layers that its next tokens went through in the steps before; 0 if it begins with the first one.
    num_half_computed : how many of its tokens these are; 0 if there are none.
    num_in_step : tokens that the current step computes; 0 if the request is in no step.
    blocks : blocks of the KV cache that it holds, in the order of its tokens.
    host_blocks : blocks of the host that it holds while it is swapped out, in the same order.
    backward_starts : of each layer, or of all as one where steps are always of all, the first token from which on its
        tokens went backward through it; empty until a request that trains went forward as a whole, and of all others.
    tokens : token ids of the sequence; empty if they are not known.
    keys : keys of its first full blocks, as far as they have been computed.
    output_tokens : how many all samples of its request will generate, where a simulation tells it to a policy that has to
        know it; 0 otherwise.
    num_preemptions : how often it lost its blocks.
    num_cached_tokens : prefix hits: tokens that were in the KV cache at its first admission.
    scheduled_s, first_token_s, finished_s : times of its first admission, and of its first and last token; NaN before.
    """

    __slots__ = (
        "arrival_s",
        "backward_starts",
        "blocks",
        "finished_s",
        "first_token_s",
        "host_blocks",
        "keys",
        "max_num_tokens",
        "num_cached_tokens",
        "num_computed",
        "num_generated",
        "num_half_computed",
        "num_in_step",
        "num_layers_done",
        "num_preemptions",
        "num_prefill_tokens",
        "num_tokens",
        "number",
        "output_tokens",
        "rank",
        "request",
        "request_number",
        "route",
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
        self.route: tuple[int, ...] = ()
        self.rank = 0
        self.num_tokens = self.num_prefill_tokens = request.prompt_tokens
        self.max_num_tokens = request.prompt_tokens + request.max_tokens
        self.num_generated = self.num_computed = self.num_in_step = self.num_preemptions = (
            self.num_cached_tokens
        ) = 0
        self.num_layers_done = self.num_half_computed = self.output_tokens = 0
        self.backward_starts: tuple[int, ...] = ()
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
        """All sequences of its request: its samples, or itself if there is only one."""
        return self.samples or (self,)

    @property
    def has_ended(self) -> bool:
        """Whether its request has all its tokens: those of all samples."""
        return self.is_finished and all(each.is_finished for each in self.samples)

    @property
    def num_to_fork(self) -> int:
        """Number of samples that will be forked from it when its prompt is computed."""
        return 0 if self.samples else self.request.num_samples - 1

    def fork(self) -> tuple[RequestState, ...]:
        """Make the other samples of its request, with the same progress and no blocks; return them."""
        others = tuple(
            RequestState(number, self.request, self.arrival_s, self.request_number)
            for number in range(self.number + 1, self.number + self.request.num_samples)
        )
        for each in others:
            each.num_computed, each.num_cached_tokens = self.num_computed, self.num_cached_tokens
            each.max_num_tokens, each.scheduled_s = self.max_num_tokens, self.scheduled_s
            each.keys, each.rank, each.route = list(self.keys), self.rank, self.route
        if others:
            for each in (self, *others):
                each.samples = (self, *others)
        return others

    @property
    def decodes(self) -> bool:
        """Whether its next step is a decode: only the newest token is not in the KV cache."""
        return self.num_tokens > self.num_prefill_tokens and self.num_tokens - self.num_computed == 1

    def __repr__(self) -> str:
        return f"<request {self.request.name}: {self.num_computed} of {self.num_tokens} tokens computed>"
