"""The timeline of one request: when it waits, its prefill and decode steps, and its preemptions."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from trainyard.serve.batch import Batch
from trainyard.serve.instance import Generated, Instance
from trainyard.serve.request_state import RequestState
from trainyard.serve.results import Served

__all__ = ["Followed", "FollowedInstance", "RequestSteps", "Span"]


class Span(NamedTuple):
    """A step that computes tokens of a request, or several consecutive decode steps.

    Attributes
    ----------
    kind : "prefill" is its prompt or a chunk of it, "recompute" a prefill after a preemption, "decode" a token per step.
    start_s, end_s : start and end.
    num_tokens : tokens that were computed.
    """

    kind: Literal["prefill", "recompute", "decode"]
    start_s: float
    end_s: float
    num_tokens: int


class RequestSteps:
    """Collects the steps of a request during a simulation.

    Parameters
    ----------
    name : name of the request.

    Attributes
    ----------
    spans : its steps so far, in the order of time.
    preempted_s : times of its preemptions.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.spans: list[Span] = []
        self.preempted_s: list[float] = []

    def add(self, span: Span) -> None:
        """Add a step that ended; consecutive decodes are merged."""
        last = self.spans[-1] if self.spans else None
        if last and last.kind == span.kind == "decode" and span.start_s <= last.end_s:
            span = Span("decode", last.start_s, span.end_s, last.num_tokens + span.num_tokens)
            self.spans.pop()
        self.spans.append(span)


@dataclass(frozen=True)
class Followed:
    """The timeline of a finished request.

    Attributes
    ----------
    served : its times and counts.
    spans : its steps, in the order of time.
    preempted_s : times of its preemptions.
    """

    served: Served
    spans: tuple[Span, ...]
    preempted_s: tuple[float, ...]

    @property
    def waits(self) -> Iterator[tuple[float, float]]:
        """Start and end of each time in which it was in no step."""
        at_s = self.served.arrival_s
        for span in self.spans:
            if span.start_s > at_s:
                yield at_s, span.start_s
            at_s = span.end_s


class FollowedInstance(Instance):
    """An instance that records the steps of one request, if that request is routed to it.

    Parameters
    ----------
    steps : collects them.
    given, more : arguments of `Instance`.
    """

    def __init__(self, steps: RequestSteps, *given: Any, **more: Any) -> None:
        super().__init__(*given, **more)
        self._steps = steps
        self._followed: RequestState | None = None
        self._starts_s: deque[float] = deque()

    def arrive(self, state: RequestState) -> str:
        if state.request.name == self._steps.name:
            self._followed = state
        return super().arrive(state)

    def decide(self, now_s: float) -> Batch:
        batch = super().decide(now_s)
        if batch.launches:
            self._starts_s.append(now_s)
        if self._followed is not None and self._followed.number in batch.preempted:
            self._steps.preempted_s.append(now_s)
        return batch

    def complete(self, batch: Batch, now_s: float, generated: Generated) -> list[RequestState]:
        start_s, state = self._starts_s.popleft(), self._followed
        if state is not None:
            for number, start, stop in batch.items:
                if number == state.number:
                    num = batch.repeat if state.decodes else stop - start
                    self._steps.add(Span(_kind(state), start_s, now_s, num))
        return super().complete(batch, now_s, generated)


def _kind(state: RequestState) -> Literal["prefill", "recompute", "decode"]:
    if state.decodes:
        return "decode"
    return "recompute" if state.num_preemptions else "prefill"
