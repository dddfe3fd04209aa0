"""Which requests share a batch: contiguous groups of them in the order of their lengths, by dynamic programming.

A batch is padded to its longest request. A large one is computed at a better rate; one of unlike lengths is mostly
padding. Of all ways to cut the requests, sorted by length, into batches, the program finds the one that takes least.

Fidelity: simplified. The plan is Algorithm 3, with a limit to the size of a batch. Its batches are computed from the
shortest to the longest, and those that come meanwhile wait for the next plan.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainyard.serve.batch import CacheOp, WorkItem
from trainyard.serve.draft import BatchDraft
from trainyard.serve.errors import ServeError
from trainyard.serve.policy import Repeats
from trainyard.serve.request_state import RequestState

__all__ = ["BatchCost", "PaddedStepTime", "TurboTransformers", "plan_batches"]

Floats = NDArray[np.float64]

BatchCost = Callable[[int, int], float]
"""Seconds of a batch, by the length in tokens to which it is padded and the number of its requests.

The paper's ``cached_cost`` is per request: this is ``cached_cost[length][size] * size``, measured beforehand.
"""


def plan_batches(lengths: Sequence[int], cost: BatchCost, max_requests: int) -> tuple[tuple[int, ...], ...]:
    """Algorithm 3: the batches that take least time together. It asks for n * max_requests costs at most.

    Parameters
    ----------
    lengths : of the requests, in tokens.
    cost : of a batch.
    max_requests : in a batch.

    Returns
    -------
    Places in ``lengths`` of the requests of each batch, all from the shortest to the longest. Where
    several take the same time, the one whose last batch has the fewest requests, and so on for those before it.

    Raises
    ------
    ServeError
        If a length or the limit is below 1, or a cost is no time.
    """
    _check(lengths, max_requests)
    order = sorted(range(len(lengths)), key=lengths.__getitem__)  # line 1
    states = [0.0]  # the least seconds of the first i requests
    starts = [0]  # start_idx_list: where the last batch of these begins
    for i, place in enumerate(order, start=1):
        least_s, start = math.inf, i - 1
        for j in range(i, max(0, i - max_requests), -1):  # the last batch is of requests j to i
            seconds = states[j - 1] + _seconds(cost, lengths[place], i - j + 1)
            if seconds < least_s:
                least_s, start = seconds, j - 1
        states.append(least_s)
        starts.append(start)
    batches = []
    stop = len(order)
    while stop:  # split points are read back from the end
        batches.append(tuple(order[starts[stop] : stop]))
        stop = starts[stop]
    return tuple(reversed(batches))


def _check(lengths: Sequence[int], max_requests: int) -> None:
    if max_requests < 1:
        raise ServeError(
            f"max_requests is {max_requests}; allowed is 1 or more; give how many a batch may have"
        )
    if lengths and min(lengths) < 1:
        raise ServeError(f"a request of {min(lengths)} tokens; allowed is 1 or more; leave it out")


def _seconds(cost: BatchCost, length: int, size: int) -> float:
    seconds = cost(length, size)
    if not 0 <= seconds < math.inf:
        raise ServeError(
            f"a batch of {size} requests of {length} tokens costs {seconds} s; allowed is a time of 0 s or more; "
            "correct the cost, or give a smaller max_requests"
        )
    return seconds


@dataclass(frozen=True)
class TurboTransformers:
    """The hungry strategy: an instance without planned batches takes all waiting requests and plans their batches.

    It serves requests of one forward pass, as of encoders, whose `max_tokens` is 1, and refuses others. If the cache has
    no room for a whole batch, the rest becomes the next batch. An encoder finds nothing in a cache: give requests without
    token ids or blocks of their prompts.

    Attributes
    ----------
    cost : of a batch.
    max_requests : in a batch.

    Raises
    ------
    ServeError
        If the limit is below 1.
    """

    cost: BatchCost
    max_requests: int = 20

    def __post_init__(self) -> None:
        _check((), self.max_requests)

    @property
    def repeats(self) -> Repeats:
        """Nobody decodes."""
        return "never"

    def start(self) -> Any:
        """Batches that are planned and not computed."""
        planned: deque[deque[RequestState]] = deque()
        return planned

    def decide(self, draft: BatchDraft, state: Any) -> None:
        """The next batch of the plan; where there is none, the first of a new one. Cancelled requests leave the plan."""
        while state and not any(map(draft.waits, state[0])):
            state.popleft()
        if not state:
            state.extend(self._plan(draft))
        if not state:
            return
        batch = state[0] = deque(filter(draft.waits, state[0]))
        while batch and draft.compute(batch[0], draft.num_left(batch[0])):
            batch.popleft()
        if not batch:
            state.popleft()

    def _plan(self, draft: BatchDraft) -> list[deque[RequestState]]:
        taken = []
        for each in list(draft.waiting):
            if each.request.max_tokens == 1:
                taken.append(each)
            else:
                draft.refuse(
                    each,
                    f"max_tokens is {each.request.max_tokens}, where a request is one forward pass; give 1",
                )
        plan = plan_batches([each.num_tokens for each in taken], self.cost, self.max_requests)
        return [deque(taken[place] for place in batch) for batch in plan]


@dataclass(frozen=True)
class PaddedStepTime:
    """Seconds of a step whose requests are padded to the longest, of a model that computes whole sequences.

    Attributes
    ----------
    cost : of a batch.
    """

    cost: BatchCost

    def seconds(self, items: Collection[WorkItem], requests: Mapping[int, RequestState]) -> float:
        return self.cost(max(item.stop for item in items), len(items))

    def decode_seconds(self, items: Collection[WorkItem], num: int) -> Floats:
        longest = max(item.stop for item in items)
        return np.array([self.cost(longest + step, len(items)) for step in range(num)], dtype=np.float64)

    def cache_seconds(self, ops: Collection[CacheOp]) -> float:
        return 0.0  # no request has a second step, before which something could be copied
