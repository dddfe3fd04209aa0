"""Many models that are to be placed on the like devices of a cluster, and the requests for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from trainyard.serve.errors import ServeError
from trainyard.serve.placing.forward_pass import ForwardPass
from trainyard.serve.policies.alpaserve.problem import (
    Arrivals,
    ModelProfile,
    PlacementProblem,
)
from trainyard.serve.requests.generate import Gamma, Poisson
from trainyard.serve.requests.request import TracedRequest

__all__ = ["ModelToPlace", "PlacingProblem", "arrivals_of", "drawn_arrivals", "mean_rates"]


@dataclass(frozen=True)
class ModelToPlace:
    """A model that answers a request by one forward pass.

    Attributes
    ----------
    name : that no other model has.
    forward : its seconds and weights.
    objective_s : longest latency of a request.

    Raises
    ------
    ServeError
        If the objective is not above 0.
    """

    name: str
    forward: ForwardPass
    objective_s: float

    def __post_init__(self) -> None:
        if not self.objective_s > 0:
            raise ServeError(f"model {self.name!r}: objective_s is {self.objective_s}; allowed is above 0")


@dataclass(frozen=True)
class PlacingProblem:
    """What is to be placed where.

    Attributes
    ----------
    models : with different names.
    num_devices : all alike.
    device_bytes : memory for weights, of each.
    arrivals : requests by which is decided.
    """

    models: tuple[ModelToPlace, ...]
    num_devices: int
    device_bytes: float
    arrivals: Arrivals

    @cached_property
    def grouped(self) -> PlacementProblem:
        """The same as AlpaServe sees it: models split over groups of devices, one request at a time."""
        profiles = tuple(
            ModelProfile(
                each.name,
                each.forward.weight_bytes,
                each.forward.stage_s,
                each.objective_s,
                each.forward.stage_bytes,
                each.forward.plans,
            )
            for each in self.models
        )
        return PlacementProblem(profiles, self.num_devices, self.device_bytes, self.arrivals)

    @cached_property
    def rates_per_s(self) -> tuple[float, ...]:
        """Mean requests per second of every model, over the time from the first to the last request of all."""
        return mean_rates(self.arrivals, len(self.models))


def mean_rates(arrivals: Arrivals, num_models: int) -> tuple[float, ...]:
    """Mean requests per second of every model, over the time from the first to the last request of all.

    Raises
    ------
    ServeError
        If all requests come at one moment.
    """
    times_s = arrivals.arrival_s
    span_s = float(times_s[-1] - times_s[0]) if len(times_s) > 1 else 0.0
    if span_s <= 0:
        raise ServeError(
            f"requests that come at one moment have no rate, and there are {len(times_s)} of these; give some that "
            "come at other times, too"
        )
    return tuple((np.bincount(arrivals.model, minlength=num_models) / span_s).tolist())


def drawn_arrivals(rates_per_s: Sequence[float], num: int, cv: float = 1.0, seed: int = 0) -> Arrivals:
    """Requests of all models, each of which come independently of the others.

    Parameters
    ----------
    rates_per_s : of every model.
    num : how many requests of all models together, about; they come in the time that these take in the mean.
    cv : coefficient of variation of the gaps of a model; 1 is as by chance.
    seed : of what is drawn.
    """
    end_s = num / sum(rates_per_s)
    times_s, models = [], []
    for model, rate in enumerate(rates_per_s):
        now_s = 0.0
        process = Poisson(rate) if cv == 1 else Gamma(rate, cv)
        for gap_s in process.gaps_s(np.random.default_rng((seed, model))):
            now_s += gap_s
            if now_s > end_s:
                break
            times_s.append(now_s)
            models.append(model)
    order = np.argsort(times_s, kind="stable")
    return Arrivals(np.array(times_s, np.float64)[order], np.array(models, np.int64)[order])


def arrivals_of(requests: Sequence[TracedRequest], names: Sequence[str]) -> Arrivals:
    """The requests of a trace.

    Parameters
    ----------
    names : of the models.

    Raises
    ------
    ServeError
        If a request asks for a model that is not there, or for none, or continues another one.
    """
    place: Mapping[str, int] = {name: i for i, name in enumerate(names)}
    for each in requests:
        if each.request.model not in place:
            raise ServeError(
                f"request {each.request.name!r} asks for model {each.request.model!r}; there are {', '.join(names)}; "
                "place all models of the trace, named as there"
            )
        if each.request.parent:
            raise ServeError(
                f"request {each.request.name!r} continues {each.request.parent!r}; allowed are requests that come at "
                "a time of their own"
            )
    times_s = np.array([each.request.arrival_s for each in requests])
    order = np.argsort(times_s, kind="stable")
    return Arrivals(
        times_s[order], np.array([place[each.request.model] for each in requests], np.int64)[order]
    )
