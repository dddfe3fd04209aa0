"""What keeps requests from their objectives: which part of a deployment, if it were better, would help most.

Each time one thing is changed, and all else is as it was: what is simulated is the same requests and the same policy.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainyard.serve.auto import Trial, tried
from trainyard.serve.batch import CacheOp, WorkItem
from trainyard.serve.request_state import RequestState
from trainyard.serve.requests.request import TracedRequest
from trainyard.serve.step_time import StepTime

__all__ = ["Limit", "limits_of"]

Floats = NDArray[np.float64]

_FASTER = 0.5


class Limit(NamedTuple):
    """Something that is changed, and what that gives.

    Attributes
    ----------
    name : what may be the limit.
    change : how it is changed.
    goodput : share of the requests that meet their objectives then.
    """

    name: str
    change: str
    goodput: float


def limits_of(trial: Trial, requests: Sequence[TracedRequest]) -> tuple[Limit, ...]:
    """What would help most, first; of equal ones, what leaves devices as fast as they are.

    Parameters
    ----------
    trial : a deployment that does not meet the objectives.
    requests : that it served.
    """
    place, model = trial.deployment, trial.deployment.model

    def with_steps(prompts: float, decodes: float) -> float:
        step_time = ScaledStepTime(model.step_time, prompts, decodes)
        return _goodput(
            replace(trial, deployment=replace(place, model=replace(model, step_time=step_time))), requests
        )

    changes: tuple[tuple[str, str, Callable[[], float]], ...] = (
        (
            "memory of the cache",
            "twice the cache",
            lambda: _goodput(
                replace(trial, deployment=replace(place, num_blocks=2 * place.num_blocks)), requests
            ),
        ),
        ("queueing", "requests come evenly", lambda: _goodput(trial, _evenly(requests))),
        ("prefill compute", "prompts take half as long", lambda: with_steps(_FASTER, 1.0)),
        ("decode steps", "decodes take half as long", lambda: with_steps(1.0, _FASTER)),
    )
    found = [Limit(name, change, goodput()) for name, change, goodput in changes]
    return tuple(sorted(found, key=lambda each: -each.goodput))


@dataclass(frozen=True)
class ScaledStepTime:
    """Steps in which prompts or decodes take another time.

    Attributes
    ----------
    step_time : as it is.
    prompts, decodes : by which the seconds are multiplied that each adds to the other; a step without prompts is one of
        decodes, and takes as many times as long.
    """

    step_time: StepTime
    prompts: float
    decodes: float

    def seconds(self, items: Collection[WorkItem], requests: Mapping[int, RequestState]) -> float:
        """Of a step."""
        decodes = [item for item in items if requests[item.request].decodes]
        others = [item for item in items if not requests[item.request].decodes]
        whole_s = self.step_time.seconds(items, requests)
        if not decodes or not others:
            return whole_s * (self.decodes if decodes else self.prompts)
        prompts_s = whole_s - self.step_time.seconds(decodes, requests)
        decodes_s = whole_s - self.step_time.seconds(others, requests)
        return whole_s - (1 - self.prompts) * prompts_s - (1 - self.decodes) * decodes_s

    def decode_seconds(self, items: Collection[WorkItem], num: int) -> Floats:
        """Of several steps in a row, in which all items decode."""
        return self.decodes * self.step_time.decode_seconds(items, num)

    def cache_seconds(self, ops: Collection[CacheOp]) -> float:
        """Of copies of blocks."""
        return self.step_time.cache_seconds(ops)


def _goodput(trial: Trial, requests: Sequence[TracedRequest]) -> float:
    found = tried(requests, trial.deployment, trial.choice, trial.router)
    return found.summary.goodput if found.summary is not None else 0.0


def _evenly(requests: Sequence[TracedRequest]) -> list[TracedRequest]:
    """The same ones at equal distances; those that continue others come as they did."""
    firsts = [each.request.arrival_s for each in requests if not each.request.parent]
    gap_s = (firsts[-1] - firsts[0]) / max(len(firsts) - 1, 1)
    found, num = [], 0
    for each in requests:
        if not each.request.parent:
            each = each._replace(request=replace(each.request, arrival_s=firsts[0] + num * gap_s))
            num += 1
        found.append(each)
    return found
