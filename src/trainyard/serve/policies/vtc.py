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

__all__ = ["VTC", "Counters"]


@dataclass
class Counters:
    """Service of each client.

    Attributes
    ----------
    counter : c_i, by client.
    last : the client whose request was admitted last.
    running : requests that were admitted, and for how many generated tokens each was charged.
    """

    counter: dict[str, float] = field(default_factory=dict)
    last: str | None = None
    running: dict[int, tuple[RequestState, int]] = field(default_factory=dict)


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

    def start(self) -> Counters:
        return Counters()

    def begin(self, draft: BatchDraft, state: Counters) -> None:
        """Charge what was generated since, and lift the counters of clients that come back (lines 3 to 12)."""
        self._charge_generated(state)
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

    def next(self, draft: BatchDraft, state: Counters) -> RequestState | None:
        """The first request of the client with the smallest counter (line 20); of equal ones, of the first seen."""
        waiting = {client for client, _ in draft.waiting_clients}
        if not waiting:
            return None
        client = min((each for each in state.counter if each in waiting), key=state.counter.__getitem__)
        return next(draft.waiting_of(client))

    def admitted(self, request: RequestState, state: Counters) -> None:
        """Charge its prompt (line 24), once."""
        if request.num_preemptions == 0:
            tokens = self.prompt_weight * request.request.prompt_tokens
            if self.predicted_tokens is not None:
                tokens += self.output_weight * self.predicted_tokens(request)
            self._charge(request, tokens, state)
            state.last = request.request.client
            state.running[request.number] = request, 0

    def _lift(self, client: str, others: list[str], state: Counters) -> None:
        least = 0.0
        if others:
            least = min(state.counter[other] for other in others)
        elif state.last is not None:
            least = state.counter[state.last]
        state.counter[client] = max(state.counter.get(client, 0.0), least)

    def _charge_generated(self, state: Counters) -> None:
        """Charge each request for its new tokens (line 30), or for those that were not predicted."""
        for number, (request, charged) in list(state.running.items()):
            generated = request.num_generated
            if self.predicted_tokens is None:
                self._charge(request, self.output_weight * (generated - charged), state)
            elif request.is_finished:
                self._charge(
                    request, self.output_weight * (generated - self.predicted_tokens(request)), state
                )
            if request.is_finished:
                del state.running[number]
            else:
                state.running[number] = request, generated

    @staticmethod
    def _charge(request: RequestState, service: float, state: Counters) -> None:
        state.counter[request.request.client] += service / request.request.weight
