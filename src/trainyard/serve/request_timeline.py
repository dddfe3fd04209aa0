"""The timeline of one request: when it waits, its prefill and decode steps, and its preemptions."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from trainyard.serve.batch import Batch, WaitReason
from trainyard.serve.instance import Generated, Instance
from trainyard.serve.request_move import RequestMove
from trainyard.serve.request_state import RequestState
from trainyard.serve.results import Served

__all__ = ["RequestSteps", "RequestTimeline", "Span", "TimelineRecordingInstance", "Wait"]


_STEP_RUNS, _OTHERS = "a step is running", "the step is of other requests"
_PREEMPTED = "its blocks went to other requests"
_MOVED = "its KV cache moves to another replica"


class Span(NamedTuple):
    """A step that computes tokens of a request, or several consecutive decode steps.

    Attributes
    ----------
    kind : "prefill" is its prompt or a chunk of it, "recompute" a prefill after a preemption, "decode" a token per step.
    start_s, end_s : start and end.
    num_tokens : tokens that went through their last layer.
    """

    kind: Literal["prefill", "recompute", "decode"]
    start_s: float
    end_s: float
    num_tokens: int


class Wait(NamedTuple):
    """A time in which a request is in no step, and why."""

    start_s: float
    end_s: float
    why: str


class RequestSteps:
    """Collects the steps of a request during a simulation.

    Parameters
    ----------
    name : name of the request.

    Attributes
    ----------
    spans : its steps so far, in the order of time.
    preempted_s : times of its preemptions.
    moved_s : times at which its blocks began to move to another instance.
    wait_reasons : times of decisions that left it waiting, and why: the first one after a step, and those with another
        reason than the one before.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.spans: list[Span] = []
        self.preempted_s: list[float] = []
        self.moved_s: list[float] = []
        self.wait_reasons: list[tuple[float, WaitReason]] = []
        self._waits_for: WaitReason | None = None

    def add(self, span: Span) -> None:
        """Add a step that ended; consecutive decodes are merged."""
        self._waits_for = None
        last = self.spans[-1] if self.spans else None
        if last and last.kind == span.kind == "decode" and span.start_s <= last.end_s:
            span = Span("decode", last.start_s, span.end_s, last.num_tokens + span.num_tokens)
            self.spans.pop()
        self.spans.append(span)

    def wait(self, now_s: float, reason: WaitReason) -> None:
        """Add a decision that left the request waiting."""
        if self._waits_for is None or self._waits_for.text != reason.text:
            self.wait_reasons.append((now_s, reason))
            self._waits_for = reason


@dataclass(frozen=True)
class RequestTimeline:
    """The timeline of a finished request.

    Attributes
    ----------
    served : its times and counts.
    spans : its steps, in the order of time.
    preempted_s : times of its preemptions.
    wait_reasons : from when on it waited for another reason than before, and why.
    moved_s : times at which its blocks began to move to another instance.
    """

    served: Served
    spans: tuple[Span, ...]
    preempted_s: tuple[float, ...]
    wait_reasons: tuple[tuple[float, WaitReason], ...] = ()
    moved_s: tuple[float, ...] = ()

    @property
    def waits(self) -> Iterator[Wait]:
        """Each time in which it was in no step, a part for each reason."""
        at_s = self.served.arrival_s
        for span in self.spans:
            if span.start_s > at_s:
                if at_s == self.served.arrival_s:
                    yield from self._parts(at_s, span.start_s, _STEP_RUNS)
                elif any(at_s <= t <= span.start_s for t in self.preempted_s):
                    yield from self._parts(at_s, span.start_s, _PREEMPTED)
                elif any(at_s <= t <= span.start_s for t in self.moved_s):
                    yield Wait(at_s, span.start_s, _MOVED)
                else:
                    yield Wait(at_s, span.start_s, _OTHERS)
            at_s = span.end_s

    def _parts(self, start_s: float, end_s: float, why: str) -> Iterator[Wait]:
        """A part for each reason; ``why`` is that before the first one."""
        for at_s, reason in self.wait_reasons:
            if at_s >= end_s:
                break
            if at_s < start_s:  # it waited before, and was in a step since
                continue
            if at_s > start_s:
                yield Wait(start_s, at_s, why)
                start_s = at_s
            why = str(reason)
        yield Wait(start_s, end_s, why)


class TimelineRecordingInstance(Instance):
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

    def move_in(self, request_move: RequestMove) -> None:
        super().move_in(request_move)
        for state in request_move.states:
            if state.request.name == self._steps.name and state is state.sequences[0]:
                self._followed = state

    def decide(self, now_s: float) -> Batch:
        batch = super().decide(now_s)
        if any(self._followed in each.states for each in self.moves):
            self._steps.moved_s.append(now_s)
        if batch.launches:
            self._starts_s.append(now_s)
        if self._followed is not None and self._followed.number in batch.preempted:
            self._steps.preempted_s.append(now_s)
        is_waiting = self._followed is not None and self._followed.number in self.queues.waiting
        if is_waiting and batch.wait_reason is not None:
            self._steps.wait(now_s, batch.wait_reason)
        return batch

    def stop(self, batch: Batch) -> Batch:
        if batch.launches:
            self._starts_s.popleft()
        return super().stop(batch)

    def complete(self, batch: Batch, now_s: float, generated: Generated) -> list[RequestState]:
        start_s, state = self._starts_s.popleft(), self._followed
        if state is not None:
            for launch in batch.launches:
                for number, start, stop in launch.items:
                    if number == state.number:
                        num = batch.repeat if state.decodes else stop - start
                        is_half = launch.layers is not None and launch.layers[1] != self.num_layers
                        self._steps.add(Span(_kind(state), start_s, now_s, 0 if is_half else num))
        return super().complete(batch, now_s, generated)


def _kind(state: RequestState) -> Literal["prefill", "recompute", "decode"]:
    if state.decodes:
        return "decode"
    return "recompute" if state.num_preemptions else "prefill"
