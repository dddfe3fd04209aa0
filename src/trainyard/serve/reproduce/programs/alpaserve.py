"""Output of AlpaServe's placement policies and simulator, beside ours.

Li et al., "AlpaServe: Statistical Multiplexing with Model Parallelism for Deep Learning Serving", OSDI 2023;
alpa-projects/mms at dba47b1. Requests of each model come as a Gamma process; placements are decided on some, and
evaluated on others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainyard.published import PaperTable, Row
from trainyard.serve.policies.alpaserve.enumeration import replication, uniform_search, uniform_shapes
from trainyard.serve.policies.alpaserve.greedy import greedy_selection
from trainyard.serve.policies.alpaserve.problem import (
    Arrivals,
    Layout,
    ModelProfile,
    ParallelConfig,
    PlacementProblem,
)
from trainyard.serve.policies.alpaserve.simulate import simulate

__all__ = ["BURSTS", "CASES", "EVEN", "POLICIES", "TABLES", "Case", "gamma_arrivals"]

Floats = NDArray[np.float64]

_GB = 2**30
_OVERHEAD_S = 0.011


class Outcome(NamedTuple):
    """Output of the program for a placement.

    Attributes
    ----------
    goodput : share of the requests that it is evaluated on that are within their objective.
    mean_latency_s : of all of these; a refused one counts as 0.
    """

    goodput: float
    mean_latency_s: float


@dataclass(frozen=True)
class Case:
    """Models that are alike, on devices.

    Attributes
    ----------
    about : in words.
    num_models, num_devices : how many.
    weight_gb, memory_gb : of a model, and for weights on a device.
    stage_s : seconds of each stage, by the number of stages; what a pipeline costs comes on top.
    objective_s : of each request.
    rate_per_s, cv : of each model's requests, see `gamma_arrivals`.
    theirs : by the policy's name in the program.
    """

    about: str
    num_models: int
    num_devices: int
    weight_gb: float
    memory_gb: float
    stage_s: Mapping[int, tuple[float, ...]]
    objective_s: float
    rate_per_s: float
    cv: float
    theirs: Mapping[str, Outcome]

    def arrivals(self, seed: int, duration_s: float) -> Arrivals:
        """Return the arrivals of all models, merged."""
        return gamma_arrivals([self.rate_per_s] * self.num_models, self.cv, seed, duration_s)

    @property
    def evaluated_on(self) -> Arrivals:
        """Ten minutes of requests."""
        return self.arrivals(1000, 600.0)

    @property
    def problem(self) -> PlacementProblem:
        """Return the problem with the requests on which placements are decided."""
        stage_s = {
            ParallelConfig(num): tuple(float(np.float32(each_s * (1 + 0.009 * num))) for each_s in times)
            for num, times in self.stage_s.items()
        }
        models = tuple(
            ModelProfile(f"m{i}", self.weight_gb * _GB, stage_s, self.objective_s)
            for i in range(self.num_models)
        )
        decided_on = self.arrivals(0, max(100.0, 30000 / (self.rate_per_s * self.num_models)))
        return PlacementProblem(models, self.num_devices, self.memory_gb * _GB, decided_on, _OVERHEAD_S)


def gamma_arrivals(rates_per_s: Sequence[float], cv: float, seed: int, duration_s: float) -> Arrivals:
    """Requests of models with Gamma gaps, drawn as the program draws them, merged by time.

    Parameters
    ----------
    rates_per_s : of each model.
    cv : coefficient of variation of the gaps.
    seed : of the first model; each next one has the next.
    """
    streams = [_gamma(seed + i, rate, cv, duration_s) for i, rate in enumerate(rates_per_s)]
    times = np.concatenate(streams)
    model = np.repeat(np.arange(len(streams)), [len(each) for each in streams])
    order = np.argsort(times, kind="stable")
    return Arrivals(times[order], model[order])


def _gamma(seed: int, rate_per_s: float, cv: float, duration_s: float) -> Floats:
    rng = np.random.RandomState(seed)
    size = max(int(1.2 * rate_per_s * duration_s), 1)
    times = np.zeros(1)
    while times[-1] < duration_s:
        gaps = rng.gamma(1 / cv**2, cv**2 / rate_per_s, size=size)
        times = np.concatenate([times, times[-1] + np.cumsum(gaps)])
    found: Floats = times[1:][times[1:] < duration_s]
    return found


POLICIES: Mapping[str, Callable[[PlacementProblem], Layout]] = {
    "replication": replication,
    "greedy_pp2": lambda problem: greedy_selection(problem, uniform_shapes(problem, ParallelConfig(2))),
    "search": uniform_search,
}
"""Policies by their names in the program."""
_WHERE = {"replication": "single devices", "greedy_pp2": "pipelines of 2", "search": "the best groups"}

EVEN = Case(
    "4 models on 4 devices, Poisson",
    4,
    4,
    2.0,
    4.5,
    {1: (0.1,), 2: (0.051,) * 2, 4: (0.026,) * 4},
    1.0,
    5.0,
    1.0,
    {
        "replication": Outcome(1.0, 0.146166),
        "greedy_pp2": Outcome(1.0, 0.125319),
        "search": Outcome(1.0, 0.125319),
    },
)
"""Load is low: all requests keep their objective, and only latency differs."""

BURSTS = Case(
    "8 models on 8 devices, in bursts",
    8,
    8,
    2.6,
    5.5,
    {
        1: (0.099,),
        2: (0.051, 0.052),
        4: (0.028, 0.027, 0.027, 0.029),
        8: (0.015, *(0.014,) * 6, 0.016),
    },
    0.5,
    3.0,
    4.0,
    {
        "replication": Outcome(0.81212, 0.197009),
        "greedy_pp2": Outcome(0.916301, 0.198484),
        "search": Outcome(0.987501, 0.19458),
    },
)
"""BERT of 1.3 billion parameters."""

CASES = (EVEN, BURSTS)


def _rows(which: int, cases: Sequence[Case]) -> Iterator[Row]:
    for case in cases:
        for name, place in POLICIES.items():
            problem = case.problem
            found = simulate(problem, place(problem), case.evaluated_on)
            ours = (found.goodput, found.mean_latency_s)[which]
            yield Row(f"{case.about}: {_WHERE[name]}", case.theirs[name][which], ours)


_SOURCE = "The authors' program of AlpaServe, OSDI 2023, its placements and simulator"
_METHOD = "placed by Algorithms 1 and 2 and simulated, the same profiles and arrivals; the tests compare the placements"

TABLES = (
    PaperTable(
        f"{_SOURCE}, goodput",
        "share of the requests that keep their objective",
        _METHOD,
        lambda: _rows(0, (BURSTS,)),
        tolerance=2e-6,
    ),
    PaperTable(
        f"{_SOURCE}, latency",
        "mean latency of all requests, s; a refused one counts as 0",
        _METHOD,
        lambda: _rows(1, CASES),
        tolerance=5e-6,
    ),
)
"""Placements, evaluated on other requests."""
