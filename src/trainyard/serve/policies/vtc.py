"""VTC: clients get the same service, counted in tokens.

References
----------
Y. Sheng et al., "Fairness in Serving Large Language Models", OSDI 2024, arXiv:2401.00588. Each client has a virtual
counter of the service that it received: w_p for each token of its prompts, w_q for each token that was generated for it,
divided by its weight. Algorithm 2: the next request that is admitted is one of the client with the smallest counter; when
a client comes back after it had no request that waits, its counter is lifted to the smallest of those that have some, so
that what it did not use is lost. Section 4.4: with prediction, the tokens that a request is expected to generate are
charged when it is admitted, and the difference once it is known.

It goes with any batch policy, which says how many are admitted.

Fidelity: exact.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from trainyard.serve.admission import AdmissionHooks
from trainyard.serve.draft import BatchDraft
from trainyard.serve.errors import require_at_least
from trainyard.serve.request_state import RequestState

__all__ = ["VTC", "VirtualCounters"]


@dataclass
class VirtualCounters:
    """Service of each client.

    Attributes
    ----------
    counter : c_i, by client, in the order in which they were first seen.
    settled : the same without what was generated for requests that have not ended.
    last : the client whose request was admitted last.
    running : requests that were admitted and have not ended.
    """

    counter: dict[str, float] = field(default_factory=dict)
    settled: dict[str, float] = field(default_factory=dict)
    last: str | None = None
    running: list[RequestState] = field(default_factory=list)


@dataclass(frozen=True)
class VTC(AdmissionHooks):
    """Virtual token counters.

    Attributes
    ----------
    prompt_weight, output_weight : w_p and w_q, service per token.
    predicted_tokens : how many tokens a request will generate, from what is known when it is admitted; None for not to
        predict.
    """

    prompt_weight: float = 1.0
    output_weight: float = 2.0
    predicted_tokens: Callable[[RequestState], float] | None = None

    def __post_init__(self) -> None:
        require_at_least(self, 0, "prompt_weight", "output_weight")

    def start(self) -> VirtualCounters:
        return VirtualCounters()

    def begin(self, draft: BatchDraft, state: VirtualCounters) -> None:
        """Charge what was generated since, and lift the counters of clients that come back (lines 3 to 12)."""
        self._count_generated(state)
        if not draft.arrived:
            return
        queued = dict(draft.waiting_clients)
        for client, num in Counter(each.request.client for each in draft.arrived).items():
            queued[client] = queued.get(client, 0) - num
        for each in draft.arrived:
            client = each.request.client
            if queued[client] <= 0:
                self._lift(client, [other for other, num in queued.items() if num > 0], state)
            queued[client] += 1

    def next(self, draft: BatchDraft, state: VirtualCounters) -> RequestState | None:
        """The first request of the client with the smallest counter (line 20); of equal ones, the first to come."""
        firsts = (next(draft.waiting_of(client)) for client, _ in draft.waiting_clients)
        return min(firsts, key=lambda each: (state.counter[each.request.client], each.number), default=None)

    def admitted(self, request: RequestState, state: VirtualCounters) -> None:
        """Charge its prompt (line 24), once."""
        if request.num_preemptions == 0:
            tokens = self.prompt_weight * request.request.prompt_tokens
            if self.predicted_tokens is not None:
                tokens += self.output_weight * self.predicted_tokens(request)
            self._charge(request, tokens, state)
            state.last = request.request.client
            if request is request.sequences[0]:  # the others are charged with it
                state.running.append(request)

    def _lift(self, client: str, others: list[str], state: VirtualCounters) -> None:
        least = 0.0
        if others:
            least = min(state.counter[other] for other in others)
        elif state.last is not None:
            least = state.counter[state.last]
        counter = state.counter.get(client, 0.0)
        if least > counter or client not in state.counter:
            state.settled[client] = state.settled.get(client, 0.0) + max(least - counter, 0.0)
            state.counter[client] = max(least, counter)

    def _count_generated(self, state: VirtualCounters) -> None:
        """Charge each request for its tokens (line 30), or for those that were not predicted once it ended.

        What is charged for a request is found from all its tokens at once: so it is the same to the last bit however many
        of them came since the last decision.
        """
        running = []
        for request in state.running:
            if request.has_ended:
                client = request.request.client
                state.settled[client] += self._generated_service(request)
            else:
                running.append(request)
        state.running = running
        state.counter = dict(state.settled)
        if self.predicted_tokens is None:
            for request in running:
                state.counter[request.request.client] += self._generated_service(request)

    def _generated_service(self, request: RequestState) -> float:
        predicted = 0.0 if self.predicted_tokens is None else self.predicted_tokens(request)
        num = request.num_generated
        if request.samples:
            num = sum(each.num_generated for each in request.samples)
        return self.output_weight * (num - predicted) / request.request.weight

    @staticmethod
    def _charge(request: RequestState, service: float, state: VirtualCounters) -> None:
        for counters in (state.counter, state.settled):
            counters[request.request.client] += service / request.request.weight
