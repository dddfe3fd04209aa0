"""Many requests on some instances, simulated."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from trainyard.engine.agenda import Agenda
from trainyard.serve.batch import Batch
from trainyard.serve.errors import ServeError
from trainyard.serve.instance import Instance
from trainyard.serve.request_state import RequestState
from trainyard.serve.requests.request import TracedRequest
from trainyard.serve.results import Results
from trainyard.serve.router import Router, round_robin
from trainyard.serve.step_time import StepTime

__all__ = ["simulate_requests"]

_INF = float("inf")


def simulate_requests(
    requests: Iterable[TracedRequest],
    instances: Sequence[Instance],
    step_time: StepTime,
    router: Router = round_robin,
    seen: Callable[[int, float, Batch], None] | None = None,
    next_token: Callable[[RequestState], int] | None = None,
) -> Results:
    """Serve all requests.

    Parameters
    ----------
    requests : in the order of their arrival.
    instances : new ones, of which each computes one batch at a time.
    step_time : how long that takes.
    router : where requests go.
    seen : told of every batch: the instance's number, when it starts, and the batch.
    next_token : the token that a request generates, where tokens are to be known.

    Raises
    ------
    ServeError
        If requests are not in order, or the policy leaves requests waiting where nothing else is to come.
    """
    simulation = _Simulation(iter(requests), instances, step_time, router, seen, next_token)
    simulation.run()
    return simulation.results


class _Simulation:
    """The clock: arrivals and ends of steps in the order of time. See `simulate_requests`."""

    def __init__(
        self,
        requests: Iterator[TracedRequest],
        instances: Sequence[Instance],
        step_time: StepTime,
        router: Router,
        seen: Callable[[int, float, Batch], None] | None,
        next_token: Callable[[RequestState], int] | None,
    ) -> None:
        self.instances, self.results = instances, Results()
        self._requests, self._step_time, self._router, self._seen = requests, step_time, router, seen
        self._next_token = next_token
        self._output_tokens: dict[int, int] = {}
        self._batches: list[Batch | None] = [None] * len(instances)
        self._end_s = np.full(len(instances), _INF)
        self._agenda = Agenda()
        self._num_arrived = 0
        self._next = next(requests, None)
        self._now_s = 0.0

    def run(self) -> None:
        """Until all requests left."""
        while True:
            end_s = self._agenda.next_s(self._end_s)
            arrival_s = _INF if self._next is None else self._next.request.arrival_s
            if min(end_s, arrival_s) == _INF:
                break
            self._now_s = min(end_s, arrival_s)
            touched = set()
            while self._agenda.next_s(self._end_s) <= self._now_s:
                touched.add(self._end_step())
            while self._next is not None and self._next.request.arrival_s <= self._now_s:
                touched.add(self._arrive(self._next))
            for number in sorted(touched):
                if self._batches[number] is None:
                    self._start_step(number)
        waiting = sum(each.queues.num_requests for each in self.instances)
        if waiting:
            raise ServeError(
                f"{waiting} requests are never served: the policy puts none of them in a batch, and nothing else comes"
            )

    def _arrive(self, traced: TracedRequest) -> int:
        if traced.request.arrival_s < self._now_s:
            raise ServeError(
                f"request {traced.request.name!r} arrives at {traced.request.arrival_s} s, after one of {self._now_s} s; "
                "give requests in the order of their arrival"
            )
        state = RequestState(self._num_arrived, traced.request)
        self._num_arrived += 1
        self._next = next(self._requests, None)
        where = self._router(state, self.instances)
        why = self.instances[where].arrive(state)
        if why:
            self.results.refuse(state, why)
        else:
            self._output_tokens[state.number] = min(
                traced.output_tokens, state.most_tokens - traced.request.prompt_tokens
            )
        return where

    def _start_step(self, number: int) -> None:
        instance = self.instances[number]
        batch = instance.decide(self._now_s)
        for state, why in instance.refused:
            del self._output_tokens[state.number]
            self.results.refuse(state, why)
        if batch.launches:
            if self._seen is not None:
                self._seen(number, self._now_s, batch)
            self._batches[number] = batch
            self._end_s[number] = self._now_s + self._step_time(batch.items, instance.queues.running)
            self._agenda.expect(self._end_s, np.array([number]))

    def _end_step(self) -> int:
        number = self._agenda.pop()
        batch = self._batches[number]
        assert batch is not None
        self._batches[number], self._end_s[number] = None, _INF
        self.results.num_steps += 1
        for state in self.instances[number].complete(batch, self._now_s, self._generated):
            del self._output_tokens[state.number]
            self.results.finish(state)
        return number

    def _generated(self, state: RequestState) -> tuple[int | None, bool]:
        token = None if self._next_token is None else self._next_token(state)
        return token, state.num_generated + 1 == self._output_tokens[state.number]
