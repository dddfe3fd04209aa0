"""Whether enough requests meet their objectives; a simulation stops once too many have missed them.

A request has missed an objective as soon as its deadline is past, so a simulation stops long before the queue is empty.
Nothing that comes later could change the answer.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from enum import Enum
from functools import partial
from typing import Any

from trainyard.serve.batch import Batch
from trainyard.serve.deployment import Deployment
from trainyard.serve.errors import ServeError
from trainyard.serve.instance import Instance
from trainyard.serve.policy import BatchPolicy
from trainyard.serve.request_state import RequestState
from trainyard.serve.requests.request import TracedRequest
from trainyard.serve.results import Results, Served
from trainyard.serve.router import Router, round_robin
from trainyard.serve.simulate import simulate_requests

__all__ = ["Shortfall", "results_if_met"]

_INF = float("inf")
_LATE = 1 + 1e-9  # times a deadline: past this, a request is late however times are rounded


class Shortfall(Enum):
    """Why too few requests meet their objectives."""

    FIRST_TOKENS = "too many first tokens are late"
    FURTHER_TOKENS = "too many further tokens are late"
    REQUESTS = "too many requests are late or refused"
    POLICY = "the policy cannot serve the requests"


def results_if_met(
    requests: Sequence[TracedRequest],
    deployment: Deployment,
    policy: BatchPolicy,
    share: float,
    router: Router = round_robin,
    *,
    names_cause: bool = False,
) -> Results | Shortfall:
    """Simulate requests; return the results, or why fewer than this share of them meet their objectives.

    The simulation stops as soon as too few can meet them, which is early if there are far too few devices.

    Parameters
    ----------
    share : target share of all requests, refused ones included.
    names_cause : whether to go on until first tokens alone, or further tokens alone, are late too often, where that
        happens at all.
    """
    most = len(requests) - math.ceil(share * len(requests) - 1e-9)
    missed = _Missed(requests, most, names_cause)
    instances = deployment.instances(policy, partial(_CountingInstance, missed))
    try:
        results = simulate_requests(requests, instances, deployment.model.step_time, router)
    except _TooManyMissed as error:
        return error.shortfall
    except ServeError:  # the policy cannot serve
        return Shortfall.POLICY
    return Shortfall.REQUESTS if missed.num > most else results


class _TooManyMissed(Exception):  # noqa: N818 - no error: nothing went wrong
    """Whatever comes, too few requests meet their objectives."""

    def __init__(self, shortfall: Shortfall) -> None:
        super().__init__(shortfall.value)
        self.shortfall = shortfall


class _Missed:
    """Requests that have missed an objective, and the next deadlines of the others.

    Parameters
    ----------
    requests : all requests; of each, the simulation knows how many tokens it will have.
    most : requests that may miss their objectives.
    names_cause : see `results_if_met`.
    """

    def __init__(self, requests: Sequence[TracedRequest], most: int, names_cause: bool) -> None:
        self._requests, self._most, self._names_cause = requests, most, names_cause
        self._numbers: dict[Shortfall, set[int]] = {each: set() for each in Shortfall}
        self._due: list[tuple[float, int, RequestState]] = []

    @property
    def num(self) -> int:
        """Requests that have missed an objective."""
        return len(set[int]().union(*self._numbers.values()))

    def arrive(self, state: RequestState) -> None:
        """Note when a new request may miss its first objective."""
        if state.request.has_objectives:
            self._look_again(state, state.arrival_s)

    def refuse(self, state: RequestState) -> None:
        """Count a request that is not served."""
        self._add(Shortfall.REQUESTS, state)

    def end(self, state: RequestState) -> None:
        """Count a request that ended, under each objective that it missed."""
        served = Served.of(state)
        if served.meets_objectives:
            return
        is_first_late = served.ttft_s > served.request.ttft_s
        is_slow = served.tpot_s > served.request.tpot_s
        if is_first_late:
            self._add(Shortfall.FIRST_TOKENS, state)
        if is_slow:
            self._add(Shortfall.FURTHER_TOKENS, state)
        if not is_first_late and not is_slow:
            self._add(Shortfall.REQUESTS, state)

    def pass_time(self, now_s: float) -> None:
        """Count requests whose deadline is past."""
        while self._due and self._due[0][0] < now_s:
            _, _, state = heapq.heappop(self._due)
            if state.is_finished:  # it was counted when it ended
                continue
            kind = self._missed_by(state, now_s)
            if kind is None:
                self._look_again(state, now_s)
            else:
                self._add(kind, state)

    def _missed_by(self, state: RequestState, now_s: float) -> Shortfall | None:
        """Which objective a request has missed that has not ended; None if it has missed none."""
        request = state.request
        first_s = state.first_token_s if state.num_generated else now_s
        if first_s - state.arrival_s > request.ttft_s * _LATE:
            return Shortfall.FIRST_TOKENS
        if state.num_generated and now_s - state.first_token_s > self._decode_s(state) * _LATE:
            return Shortfall.FURTHER_TOKENS
        return Shortfall.REQUESTS if now_s - state.arrival_s > request.e2e_s * _LATE else None

    def _look_again(self, state: RequestState, now_s: float) -> None:
        """Note when a request may miss an objective next."""
        first_s = state.first_token_s if state.num_generated else now_s
        due_s = min(state.arrival_s + state.request.e2e_s, first_s + self._decode_s(state))
        if not state.num_generated:
            due_s = min(due_s, state.arrival_s + state.request.ttft_s)
        if due_s < _INF:
            heapq.heappush(self._due, (max(due_s, now_s) * _LATE, state.number, state))

    def _decode_s(self, state: RequestState) -> float:
        """Seconds that all tokens after the first one may take; infinite where there are several answers."""
        request = state.request
        if request.num_samples > 1 or request.trains:
            return _INF
        num_tokens = min(
            state.max_num_tokens - request.prompt_tokens,
            self._requests[state.request_number].max_output_tokens,
        )
        return max(num_tokens - 1, 1) * request.tpot_s

    def _add(self, kind: Shortfall, state: RequestState) -> None:
        numbers = self._numbers[kind]
        numbers.add(state.sequences[0].number)
        if len(numbers) > self._most:
            raise _TooManyMissed(kind)
        if not self._names_cause and self.num > self._most:
            raise _TooManyMissed(Shortfall.REQUESTS)


class _CountingInstance(Instance):
    """Counts requests that miss their objectives, as soon as that is certain."""

    def __init__(self, missed: _Missed, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self._missed = missed

    def arrive(self, state: RequestState) -> str:
        why = super().arrive(state)
        if why:
            self._missed.refuse(state)
        else:
            self._missed.arrive(state)
        return why

    def decide(self, now_s: float) -> Batch:
        self._missed.pass_time(now_s)
        batch = super().decide(now_s)
        for state, _ in self.refused:
            self._missed.refuse(state)
        return batch

    def complete(self, batch: Batch, now_s: float, generated: Any) -> list[RequestState]:
        done = super().complete(batch, now_s, generated)
        for state in done:
            if state.has_ended:
                self._missed.end(state)
        return done
