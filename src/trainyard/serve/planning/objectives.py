"""Whether enough requests meet their objectives; a simulation stops once too many have missed them."""

from __future__ import annotations

import math
from collections.abc import Sequence
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

__all__ = ["results_if_met"]


def results_if_met(
    requests: Sequence[TracedRequest],
    deployment: Deployment,
    policy: BatchPolicy,
    share: float,
    router: Router = round_robin,
) -> Results | None:
    """Simulate requests; None if fewer than this share of them meet their objectives.

    The simulation stops as soon as that is certain, which is early if there are far too few devices.

    Parameters
    ----------
    share : target share of all requests, refused ones included.
    """
    missed = _Missed(len(requests) - math.ceil(share * len(requests) - 1e-9))
    instances = deployment.instances(policy, partial(_CountingInstance, missed))
    try:
        return simulate_requests(requests, instances, deployment.model.step_time, router)
    except (_TooManyMissed, ServeError):  # the policy serves too few, or cannot serve
        return None


class _TooManyMissed(Exception):  # noqa: N818 - no error: nothing went wrong
    """Whatever comes, too few requests meet their objectives."""


class _Missed:
    """Requests that have missed their objectives."""

    def __init__(self, most: int) -> None:
        self._most, self._numbers = most, set[int]()

    def add(self, number: int) -> None:
        """One has."""
        self._numbers.add(number)
        if len(self._numbers) > self._most:
            raise _TooManyMissed


class _CountingInstance(Instance):
    """Counts requests that miss their objectives, and those that wait for their first token too long already."""

    def __init__(self, missed: _Missed, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self._missed = missed

    def arrive(self, state: RequestState) -> str:
        why = super().arrive(state)
        if why:
            self._missed.add(state.number)
        return why

    def decide(self, now_s: float) -> Batch:
        for state in self.queues.waiting.values():
            if not state.num_generated:  # else it was preempted, and has its first token
                if now_s - state.arrival_s <= state.request.ttft_s:
                    break
                self._missed.add(state.number)
        batch = super().decide(now_s)
        for state, _ in self.refused:
            self._missed.add(state.number)
        return batch

    def complete(self, batch: Batch, now_s: float, generated: Any) -> list[RequestState]:
        done = super().complete(batch, now_s, generated)
        for state in done:
            if not Served.of(state).meets_objectives:
                self._missed.add(state.number)
        return done
