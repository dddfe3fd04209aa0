"""VTC: clients get the same service, counted in tokens.

References
----------
Y. Sheng et al., "Fairness in Serving Large Language Models", OSDI 2024, arXiv:2401.00588. Each client has a virtual
counter of the service that it received: w_p for each token of its prompts, w_q for each token that was generated for it,
divided by its weight. Algorithm 2: the next request that is admitted is one of the client with the smallest counter; when
a client comes back after it had no request that waits, its counter is lifted to the smallest of those that have some, so
that what it did not use is lost. Section 4.4, algorithm 3: with length prediction, the tokens that a request is expected
to generate are charged when it is admitted; further ones when they are generated; and what is missing in the end is given
back. Two predictors of the evaluation: the mean of the last five requests of the client ("predict"; the authors' program
smooths it), and the true length ("oracle"), which only a simulation knows and which says what a perfect predictor would
bring. Both are options here: ``vtc(predict='moving average')`` and ``vtc(predict='oracle')``.

It goes with any batch policy, which says how many are admitted.

Fidelity: exact.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, get_args

from trainyard.serve.admission import AdmissionHooks
from trainyard.serve.draft import BatchDraft
from trainyard.serve.errors import ServeError, require_at_least
from trainyard.serve.request_state import RequestState

__all__ = ["VTC", "Predictor", "VirtualCounters"]

Predictor = Literal["moving average", "oracle"]
"""How long the output of a request is expected to be: as long as those of its client's last requests, in the mean; or
exactly as long as it will be."""


class _Admitted(NamedTuple):
    """A request that runs, with all its samples; or one sequence that moved in from another instance.

    Attributes
    ----------
    charged_tokens : generated tokens that are not charged as they come: predicted ones, which were charged when the
        request was admitted, or those that were generated before the sequence moved in.
    moved_in : whether it is one sequence of an instance that computed its prompt.
    """

    request: RequestState
    charged_tokens: float
    moved_in: bool = False

    @property
    def generated_tokens(self) -> int:
        """Of all samples, or of the sequence that moved in.

        Of a request that goes on at another instance, whose steps are not seen here, the others count when it ends.
        """
        request = self.request
        if self.moved_in or not (request.samples or len(request.route) > 1):
            return request.num_generated
        if len(request.route) > 1 and not request.has_ended:
            return sum(min(each.num_generated, 1) for each in request.sequences)
        return sum(each.num_generated for each in request.sequences)

    @property
    def has_ended(self) -> bool:
        """Whether all samples have all their tokens, or the sequence that moved in has."""
        is_alone = self.moved_in or not self.request.samples
        return self.request.is_finished if is_alone else self.request.has_ended


@dataclass
class VirtualCounters:
    """Service of each client.

    Attributes
    ----------
    counter : c_i, by client.
    settled : the same without what was generated for requests that have not ended.
    seen : how many clients were seen before each.
    last : the client whose request was admitted or moved in last.
    running : requests that were admitted and have not ended.
    last_tokens : output tokens of the last requests of each client that ended.
    """

    counter: dict[str, float] = field(default_factory=dict)
    settled: dict[str, float] = field(default_factory=dict)
    seen: dict[str, int] = field(default_factory=dict)
    last: str | None = None
    running: list[_Admitted] = field(default_factory=list)
    last_tokens: dict[str, deque[int]] = field(default_factory=dict)


@dataclass(frozen=True)
class VTC(AdmissionHooks):
    """Virtual token counters.

    Attributes
    ----------
    prompt_weight, output_weight : w_p and w_q, service per token.
    predict : how the length of an output is predicted; by default it is not. Before a request of a client has ended,
        'moving average' predicts 0 tokens. 'oracle' is for simulations only.
    predict_requests : how many requests the moving average is of.
    """

    prompt_weight: float = 1.0
    output_weight: float = 2.0
    predict: Predictor | None = None
    predict_requests: int = 5

    def __post_init__(self) -> None:
        require_at_least(self, 0, "prompt_weight", "output_weight")
        require_at_least(self, 1, "predict_requests")
        if self.predict is not None and self.predict not in get_args(Predictor):
            allowed = ", ".join(map(repr, get_args(Predictor)))
            raise ServeError(f"predict is {self.predict!r}; allowed are {allowed}, or None for no prediction")

    @property
    def reads_output_tokens(self) -> bool:
        """Whether it has to know how long outputs will be; see `OracleAdmission`."""
        return self.predict == "oracle"

    def start(self) -> VirtualCounters:
        return VirtualCounters()

    def begin(self, draft: BatchDraft, state: VirtualCounters) -> None:
        """Charge what was generated since, and lift the counters of clients that come back (lines 3 to 12)."""
        self._count_generated(state)
        if draft.arrived:
            self._arrive(draft, state)
        if draft.moved_in:
            self._move_in(draft, state)

    def next(self, draft: BatchDraft, state: VirtualCounters) -> RequestState | None:
        """The first request of the client with the smallest counter (line 20); of equal ones, the client first seen."""
        counter, seen = state.counter, state.seen
        client = min(
            (client for client, _ in draft.waiting_clients),
            key=lambda each: (counter[each], seen[each]),
            default=None,
        )
        return None if client is None else next(draft.waiting_of(client))

    def admitted(self, request: RequestState, state: VirtualCounters) -> None:
        """Charge its prompt (line 24) and what is predicted, once."""
        if request.num_preemptions == 0:
            service = self.prompt_weight * request.request.prompt_tokens
            if request is request.sequences[0]:  # the tokens of the others are charged with it
                predicted = self._predicted_tokens(request, state)
                service += self.output_weight * predicted
                state.running.append(_Admitted(request, predicted))
            self._charge(request, service, state)
            state.last = request.request.client

    def _arrive(self, draft: BatchDraft, state: VirtualCounters) -> None:
        queued = dict(draft.waiting_clients)
        for client, num in Counter(each.request.client for each in draft.arrived).items():
            queued[client] = queued.get(client, 0) - num
        for each in draft.arrived:
            client = each.request.client
            if queued[client] <= 0:
                self._lift(client, [other for other, num in queued.items() if num > 0], state)
            queued[client] += 1

    def _move_in(self, draft: BatchDraft, state: VirtualCounters) -> None:
        """Lift counters as if each sequence had arrived and been admitted at once."""
        queued = [client for client, _ in draft.waiting_clients]
        for each in draft.moved_in:
            client = each.request.client
            if client not in queued:
                self._lift(client, queued, state)
            self._go_on(each, state)
            state.last = client

    def _go_on(self, sequence: RequestState, state: VirtualCounters) -> None:
        """Charge what this instance will generate of a sequence; the one that computed its prompt charges all of it."""
        state.running.append(_Admitted(sequence, sequence.num_generated, moved_in=True))

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
            state.seen.setdefault(client, len(state.seen))

    def _count_generated(self, state: VirtualCounters) -> None:
        """Charge each request for tokens beyond the predicted ones (line 30); in the end, give back missing ones.

        What is charged for a request is found from all its tokens at once: so it is the same to the last bit however many
        of them came since the last decision.
        """
        running = []
        for each in state.running:
            if each.has_ended:
                num, client = each.generated_tokens, each.request.request.client
                state.settled[client] += self._service(each, num - each.charged_tokens)
                if not each.moved_in:
                    last = state.last_tokens.setdefault(client, deque(maxlen=self.predict_requests))
                    last.append(num)
            else:
                running.append(each)
        state.running = running
        state.counter = dict(state.settled)
        for each in running:
            beyond = max(0.0, each.generated_tokens - each.charged_tokens)
            state.counter[each.request.request.client] += self._service(each, beyond)

    def _predicted_tokens(self, request: RequestState, state: VirtualCounters) -> float:
        """How many tokens all samples of a request are expected to generate."""
        if self.predict == "oracle":
            return request.output_tokens
        last = state.last_tokens.get(request.request.client)
        return sum(last) / len(last) if self.predict == "moving average" and last else 0.0

    def _service(self, admitted: _Admitted, tokens: float) -> float:
        return self.output_weight * tokens / admitted.request.request.weight

    @staticmethod
    def _charge(request: RequestState, service: float, state: VirtualCounters) -> None:
        for counters in (state.counter, state.settled):
            counters[request.request.client] += service / request.request.weight
