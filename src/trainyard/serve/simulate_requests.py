"""Simulate requests on instances: the clock of level 3."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from trainyard.engine.agenda import Agenda
from trainyard.serve.arrivals import Arrival, Arrivals
from trainyard.serve.batch import Batch, Direction, Layers, WorkItem, share_of_layers
from trainyard.serve.errors import ServeError
from trainyard.serve.instance import Instance
from trainyard.serve.policy import reads_output_tokens
from trainyard.serve.request_move import RequestMove
from trainyard.serve.request_state import RequestState
from trainyard.serve.requests.request import Request, TracedRequest
from trainyard.serve.results import Results
from trainyard.serve.router import Router, round_robin
from trainyard.serve.step_time import StepTime

__all__ = ["simulate_requests"]

Floats = NDArray[np.float64]

_INF = float("inf")
_MOST_PREEMPTIONS = 1000  # of each request, while none gets any farther: that will not end
_MOST_REPEATS = 256  # what a request that comes cuts off was computed for nothing


def simulate_requests(
    requests: Iterable[TracedRequest],
    instances: Sequence[Instance],
    step_time: StepTime,
    router: Router = round_robin,
    seen: Callable[[int, float, Batch], None] | None = None,
    next_token: Callable[[RequestState], int] | None = None,
    *,
    one_by_one: bool = False,
) -> Results:
    """Simulate until all requests are served or refused.

    Parameters
    ----------
    requests : in the order of their arrival, as `Arrivals` has them.
    instances : new ones, one for each replica.
    step_time : the time of each step.
    router : chooses the instances of a request.
    seen : called for every batch when it ends, before its requests are updated, with the number of the instance, the
        start time and the batch.
    next_token : returns the token that a request generates, if token ids are to be known.
    one_by_one : decide every step by itself; otherwise a decode batch that stays the same is repeated.

    Raises
    ------
    ServeError
        If requests are not in order, or a policy leaves requests waiting forever, or preempts requests again and again of
        which none generates a token; or if requests train, and the policy or the step time knows no backward pass.
    """
    repeats = not one_by_one and next_token is None
    simulation = _Simulation(iter(requests), instances, step_time, router, seen, next_token, repeats)
    simulation.run()
    return simulation.results


@dataclass
class _Step:
    """Step that an instance computes.

    Attributes
    ----------
    start_s : when it was decided, and its copies and loads of weights began.
    begins_s : when they are done, on the first stage.
    ends_s : when it will have been computed once, twice, and so on.
    may_be_cut : whether the arrival of a request ends its repetition.
    """

    batch: Batch
    start_s: float
    begins_s: float
    ends_s: Floats
    may_be_cut: bool


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
        repeats: bool,
    ) -> None:
        self.instances, self.results = instances, Results()
        self._step_time, self._router, self._seen = step_time, router, seen
        self._next_token, self._repeats = next_token, repeats
        self._tells_lengths = any(reads_output_tokens(each.policy) for each in instances)
        self._blocks_alike = len({each.cache.block_tokens for each in instances}) == 1
        self._output_tokens: dict[int, int] = {}
        self._steps: list[deque[_Step]] = [deque() for _ in instances]
        self._busy_since_s: list[float | None] = [None] * len(instances)
        self._stage_free_s = [[0.0] * each.num_stages for each in instances]
        self._end_s = np.full(len(instances), _INF)
        self._agenda = Agenda()
        self._arrivals = Arrivals(requests)
        self._now_s = 0.0
        self._touched: set[int] = set()
        self._leaving: list[RequestState] = []
        self._moves: list[tuple[float, int, int, RequestMove]] = []
        self._num_moves = 0
        self._link_free_s = [0.0] * len(instances)
        self._num_preempted = 0  # since a request last generated a token

    def run(self) -> None:
        """Run until all requests left."""
        while True:
            end_s = self._agenda.next_s(self._end_s)
            next_s = min(end_s, self._arrivals.next_s, self._moves[0][0] if self._moves else _INF)
            if next_s == _INF:
                break
            self._now_s = next_s
            self._touched = set()
            while end_s <= next_s:
                self._end_step()
                end_s = self._agenda.next_s(self._end_s)
            while self._moves and self._moves[0][0] <= next_s:
                self._end_move()
            while self._arrivals.next_s <= next_s:
                self._arrive(self._arrivals.pop())
            for number in sorted(self._touched):
                while len(self._steps[number]) < self.instances[number].num_stages:
                    if not self._start_step(number):
                        break
                self._note_busy(number)
        waiting = sum(each.queues.num_requests + len(each.arriving) for each in self.instances)
        if waiting:
            raise ServeError(
                f"{waiting} request{'s are' if waiting > 1 else ' is'} never served: the policy puts none of them in a "
                "batch, and nothing else comes"
            )

    def _arrive(self, arrival: Arrival) -> None:
        traced = arrival.traced
        state = RequestState(arrival.number, traced.request, arrival.at_s, arrival.request_number)
        if self._blocks_alike:  # so that keys of one instance are those of the others
            state.keys = list(arrival.keys)
        state.route = self._router(state, self.instances)
        if traced.request.trains:
            state.route = state.route[:1]  # no other instance generates anything
            self._step_time.backward_seconds(
                [WorkItem(state.number, 0, 1)], {state.number: state}
            )  # or refuses
        where = state.route[0]
        self._touched.add(where)
        why = self.instances[where].arrive(state)
        if why:
            self._refuse(traced.request, why)
            return
        if len(state.route) > 1:
            self.instances[state.route[-1]].num_expected += traced.request.num_samples
        most = state.max_num_tokens - traced.request.prompt_tokens
        if most < traced.longest_answer_tokens:
            self.results.num_cut += 1
        for number, output_tokens in enumerate(traced.by_sample, state.number):
            self._output_tokens[number] = min(output_tokens, most)
            if self._tells_lengths:
                state.output_tokens += self._output_tokens[number]
        steps = self._steps[where]
        if steps and self.instances[where].stops_for(state, steps[0].batch):
            self._stop(where)
        for step in steps:
            if step.may_be_cut:
                self._cut(where, step)

    def _stop(self, number: int) -> None:
        """The step that runs is not computed, nor are further repetitions of it."""
        step, instance = self._steps[number].popleft(), self.instances[number]
        self._expect(number)
        self._stage_free_s[number][0] = max(self._now_s, step.begins_s)
        num_done, left = int(np.searchsorted(step.ends_s, self._now_s, side="right")), step.batch
        if num_done:
            self._complete(number, replace(step, ends_s=step.ends_s[:num_done]))
            left = Batch()
        stopped = instance.stop(left)
        if self._seen is not None:
            self._seen(number, step.start_s, stopped)

    def _cut(self, number: int, step: _Step) -> None:
        """A step is repeated no longer."""
        step.ends_s = step.ends_s[: np.searchsorted(step.ends_s, self._now_s) + 1]
        self._expect(number)

    def _start_step(self, number: int) -> bool:
        """Whether there is anything to compute."""
        instance, start_s = self.instances[number], self._now_s
        batch = instance.decide(start_s)
        for state, why in instance.refused:
            for each in range(state.request.num_samples):
                del self._output_tokens[state.sequences[0].number + each]
            if len(state.route) > 1:
                self.instances[state.route[-1]].num_expected -= state.request.num_samples
            self._refuse(state.request, why)
        for request_move in instance.moves:
            self._begin_move(number, request_move)
        before_s, free_s = self._before_s(batch, instance), self._stage_free_s[number]
        begins_s = max(start_s, free_s[0]) + before_s
        if not batch.launches:
            if self._seen is not None and (batch.cache_ops or batch.refused):
                self._seen(number, start_s, batch)
            if before_s:  # the next step waits for that
                free_s[0] = begins_s
            return False
        num = (
            instance.max_repeats(batch, partial(self._most_repeats, batch, instance)) if self._repeats else 1
        )
        if num == 1:
            ends_s = np.array([self._through_stages(number, batch, before_s)])
        else:
            seconds = self._step_time.decode_seconds(batch.items, num)
            ends_s = np.cumsum(np.concatenate(([begins_s], seconds)))[1:]
        may_be_cut = num > 1 and not instance.queues.waiting
        step = _Step(batch, start_s, begins_s, ends_s, may_be_cut)
        self._steps[number].append(step)
        self._expect(number)
        return True

    def _through_stages(self, number: int, batch: Batch, before_s: float) -> float:
        """When a batch that starts now leaves the last stage. Each computes one batch after the other."""
        free_s, at_s, instance = self._stage_free_s[number], self._now_s, self.instances[number]
        if len(free_s) == 1:
            parts_s = [self._seconds(batch, instance)]
        else:
            parts_s = self._step_time.stage_seconds(
                batch.items, instance.queues.running, len(free_s)
            ).tolist()
        for stage, part_s in enumerate(parts_s):
            at_s = free_s[stage] = max(at_s, free_s[stage]) + (before_s + part_s)
        return at_s

    def _seconds(self, batch: Batch, instance: Instance) -> float:
        """Return the seconds of a batch: the forward launches together, and then the backward passes.

        A launch of some layers takes their share: of what its items would add to the step, or of their backward pass.
        """
        step_time, running, launches = self._step_time, instance.queues.running, batch.launches
        if len(launches) == 1 and launches[0].layers is None and launches[0].direction == "forward":
            return step_time.seconds(batch.items, running)
        together: dict[tuple[Layers, Direction], list[WorkItem]] = {}
        for items, _, layers, direction in launches:
            together.setdefault((layers, direction), []).extend(items)
        whole = together.pop((None, "forward"), [])
        whole_s = total_s = step_time.seconds(whole, running) if whole else 0.0
        for (layers, direction), some in together.items():
            if direction == "backward":
                seconds = step_time.backward_seconds(some, running)
            else:
                seconds = step_time.seconds((*whole, *some), running) - whole_s
            total_s += share_of_layers(layers, instance.num_layers) * seconds
        return total_s

    def _before_s(self, batch: Batch, instance: Instance) -> float:
        """Copies of blocks and loads of weights on each device, before it computes anything."""
        seconds = self._step_time.cache_seconds(batch.cache_ops) if batch.copies else 0.0
        if batch.weight_ops:
            seconds += self._step_time.weight_seconds(batch.weight_ops, instance.num_layers)
        return seconds

    def _note_busy(self, number: int) -> None:
        since_s = self._busy_since_s[number]
        if self._steps[number] and since_s is None:
            self._busy_since_s[number] = self._now_s
        elif not self._steps[number] and since_s is not None:
            self.results.busy_s += self._now_s - since_s
            self._busy_since_s[number] = None

    def _expect(self, number: int) -> None:
        """The first of its steps is the next one that ends."""
        self._end_s[number] = self._steps[number][0].ends_s[-1] if self._steps[number] else _INF
        if self._steps[number]:
            self._agenda.expect(self._end_s, np.array([number]))

    def _begin_move(self, number: int, request_move: RequestMove) -> None:
        """Blocks come to an instance, after those that came before over the link of one of both."""
        ends = (number, request_move.source)
        start_s = max(self._now_s, *(self._link_free_s[end] for end in ends))
        end_s = start_s + self._step_time.move_seconds(request_move.num_blocks)
        for end in ends:
            self._link_free_s[end] = end_s
        self._num_moves += 1
        heapq.heappush(self._moves, (end_s, self._num_moves, number, request_move))

    def _end_move(self) -> None:
        *_, number, request_move = heapq.heappop(self._moves)
        request_move.end()
        for step in self._steps[request_move.source]:  # blocks are free there
            self._cut(request_move.source, step)
        self._touched |= {number, request_move.source}

    def _hand_over(self, number: int) -> None:
        """Requests whose prompts were computed go on at the next instance of their routes."""
        going: dict[int, list[RequestState]] = {}
        for state in self._leaving:
            if state.is_finished:
                self.instances[state.route[-1]].num_expected -= 1
            else:
                going.setdefault(state.request_number, []).append(state)
        for states in going.values():
            where = states[0].route[-1]
            self.instances[where].move_in(self.instances[number].move_out(states, number))
            self._touched.add(where)
            for step in self._steps[where]:
                self._cut(where, step)
        self._leaving = []

    def _end_step(self) -> None:
        number = self._agenda.pop()
        self._touched.add(number)
        step = self._steps[number].popleft()
        self._expect(number)
        self._complete(number, step)

    def _complete(self, number: int, step: _Step) -> None:
        instance = self.instances[number]
        batch = instance.repeated(step.batch, len(step.ends_s))
        if self._seen is not None:
            self._seen(number, step.start_s, batch)
        self.results.num_steps += batch.repeat
        end_s, ended = float(step.ends_s[-1]), {}
        self._note_preempted(len(batch.preempted))
        for state in instance.complete(batch, end_s, self._generated):
            del self._output_tokens[state.number]
            if state.has_ended:  # several samples may have in the same step
                ended[state.sequences[0].number] = state.sequences[0]
        for state in ended.values():
            self.results.finish(state)
            self._arrivals.ended(state, end_s)
        if self._leaving:
            self._hand_over(number)

    def _note_preempted(self, num: int) -> None:
        self._num_preempted += num
        if num and self._num_preempted > _MOST_PREEMPTIONS * sum(
            e.queues.num_requests for e in self.instances
        ):
            raise ServeError(
                f"requests were preempted {self._num_preempted:,} times, and none generated a token meanwhile; the "
                "policy is to let some run until they have one"
            )

    def _refuse(self, request: Request, why: str) -> None:
        self.results.refuse(request, why)
        for child in self._arrivals.refused(request):
            self.results.refuse(child.traced.request, "continues a request that was refused")

    def _most_repeats(self, batch: Batch, instance: Instance) -> int:
        """The fewest tokens that a request of a batch will generate, up to the limit of repeats."""
        running = instance.queues.running
        fewest = min(self._output_tokens[n] - running[n].num_generated for n, _, _ in batch.items)
        return min(fewest, _MOST_REPEATS)

    def _generated(self, state: RequestState) -> tuple[int | None, bool]:
        self._num_preempted = 0
        if state.num_generated == 0 and len(state.route) > 1:
            self._leaving.append(state)
        token = None if self._next_token is None else self._next_token(state)
        return token, state.num_generated + 1 >= self._output_tokens[state.number]
