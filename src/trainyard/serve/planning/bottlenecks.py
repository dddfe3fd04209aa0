"""Bottlenecks: the part of a deployment that would help requests most to meet their objectives if it were better.

The same requests are simulated with the same policy again, each time with one thing improved.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from trainyard.serve.auto import Trial, tried
from trainyard.serve.batch import CacheOp, WeightOp, WorkItem
from trainyard.serve.request_state import RequestState
from trainyard.serve.requests.request import TracedRequest
from trainyard.serve.step_time import StepTime

__all__ = ["Bottleneck", "bottlenecks_of"]

Floats = NDArray[np.float64]
Seconds = TypeVar("Seconds", float, Floats)

_FASTER = 0.5


class Bottleneck(NamedTuple):
    """A part of a deployment, and what an improvement of it gives.

    Attributes
    ----------
    name : what may be the bottleneck.
    change : how it is improved.
    slo_attainment : share of the requests that then meet their objectives.
    """

    name: str
    change: str
    slo_attainment: float


def bottlenecks_of(trial: Trial, requests: Sequence[TracedRequest]) -> tuple[Bottleneck, ...]:
    """The bottlenecks, the one whose improvement helps most first.

    Of equal ones, those that need no faster device come first.

    Parameters
    ----------
    trial : a deployment that does not meet the objectives.
    requests : that it served.
    """
    place, model = trial.deployment, trial.deployment.model

    def with_steps(prompts: float, decodes: float) -> float:
        step_time = ScaledStepTime(model.step_time, prompts, decodes)
        return _slo_attainment(
            replace(trial, deployment=replace(place, model=replace(model, step_time=step_time))), requests
        )

    changes: tuple[tuple[str, str, Callable[[], float]], ...] = (
        (
            "KV cache size",
            "twice the KV cache",
            lambda: _slo_attainment(
                replace(
                    trial, deployment=replace(place, num_blocks=2 * place.num_blocks, fills_memory=False)
                ),
                requests,
            ),
        ),
        ("queueing", "evenly spaced arrivals", lambda: _slo_attainment(trial, _evenly(requests))),
        ("prefill compute", "prefill twice as fast", lambda: with_steps(_FASTER, 1.0)),
        ("decode speed", "decode twice as fast", lambda: with_steps(1.0, _FASTER)),
    )
    found = [Bottleneck(name, change, attainment()) for name, change, attainment in changes]
    return tuple(sorted(found, key=lambda each: -each.slo_attainment))


@dataclass(frozen=True)
class ScaledStepTime:
    """Step times in which prefill or decode is faster or slower.

    Attributes
    ----------
    step_time : the unscaled times.
    prompts, decodes : factors of the seconds that prefill and decode add to a step of both; a step of only one of them is
        scaled as a whole.
    """

    step_time: StepTime
    prompts: float
    decodes: float

    def seconds(self, items: Collection[WorkItem], requests: Mapping[int, RequestState]) -> float:
        """Return the seconds of a step."""
        return self._scaled(items, requests, lambda some: self.step_time.seconds(some, requests))

    def stage_seconds(
        self, items: Collection[WorkItem], requests: Mapping[int, RequestState], num_stages: int
    ) -> Floats:
        """Return the seconds of a step on each stage."""
        return self._scaled(
            items, requests, lambda some: self.step_time.stage_seconds(some, requests, num_stages)
        )

    def decode_seconds(self, items: Collection[WorkItem], num: int) -> Floats:
        """Return the seconds of several steps in a row, in which all items decode."""
        return self.decodes * self.step_time.decode_seconds(items, num)

    def backward_seconds(self, items: Collection[WorkItem], requests: Mapping[int, RequestState]) -> float:
        """Return the seconds of a backward pass, which is not scaled."""
        return self.step_time.backward_seconds(items, requests)

    def cache_seconds(self, ops: Collection[CacheOp]) -> float:
        """Seconds of the copies of blocks."""
        return self.step_time.cache_seconds(ops)

    def move_seconds(self, num_blocks: int) -> float:
        """Seconds until so many blocks have come from another instance."""
        return self.step_time.move_seconds(num_blocks)

    def weight_seconds(self, ops: Collection[WeightOp], num_layers: int | None) -> float:
        """Seconds of loading weights."""
        return self.step_time.weight_seconds(ops, num_layers)

    def _scaled(
        self,
        items: Collection[WorkItem],
        requests: Mapping[int, RequestState],
        seconds_of: Callable[[Collection[WorkItem]], Seconds],
    ) -> Seconds:
        decodes = [item for item in items if requests[item.request].decodes]
        others = [item for item in items if not requests[item.request].decodes]
        whole_s = seconds_of(items)
        if not decodes or not others:
            return whole_s * (self.decodes if decodes else self.prompts)
        prompts_s = whole_s - seconds_of(decodes)
        decodes_s = whole_s - seconds_of(others)
        return whole_s - (1 - self.prompts) * prompts_s - (1 - self.decodes) * decodes_s


def _slo_attainment(trial: Trial, requests: Sequence[TracedRequest]) -> float:
    found = tried(requests, trial.deployment, trial.choice, trial.router)
    return found.summary.share_met if found.summary is not None else 0.0


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
