"""AlpaServe: two models on two GPUs as in its paper, and what the authors' program puts out."""

from __future__ import annotations

from collections.abc import Iterator

from trainyard.published import PaperTable, Row
from trainyard.serve.policies.alpaserve.enumeration import replication
from trainyard.serve.policies.alpaserve.local import mixed_search
from trainyard.serve.policies.alpaserve.problem import ModelProfile, ParallelConfig, PlacementProblem
from trainyard.serve.policies.alpaserve.simulate import simulate
from trainyard.serve.reproduce.programs.alpaserve import TABLES as PROGRAM
from trainyard.serve.reproduce.programs.alpaserve import gamma_arrivals

_ANY_S = 1e9
_REQUEST_S = 0.4
_CASES = {
    "Poisson": ((1.5, 1.5), 1.0, 1.3),
    "Gamma, coefficient of variation 3": ((1.5, 1.5), 3.0, 1.9),
    "Poisson, 20 % and 80 % of the requests": ((0.6, 2.4), 1.0, 6.6),
}
"""Requests per second of each model, coefficient of variation of the gaps, and the ratio of latencies."""


def _latencies(rates_per_s: tuple[float, float], cv: float) -> tuple[float, float]:
    """Means on single devices, and on the placement that is found; each device has the memory for one model."""
    stage_s = {ParallelConfig(1): (_REQUEST_S,), ParallelConfig(2): (_REQUEST_S / 2,) * 2}
    models = tuple(ModelProfile(f"m{i}", 13.4e9, stage_s, _ANY_S) for i in range(2))
    problem = PlacementProblem(models, 2, 14e9, gamma_arrivals(rates_per_s, cv, 0, 20_000))
    layouts = replication(problem), mixed_search(problem, num_moves=0)
    alone_s, together_s = (simulate(problem, layout).mean_latency_s for layout in layouts)
    return alone_s, together_s


def _rows() -> Iterator[Row]:
    for label, (rates_per_s, cv, theirs) in _CASES.items():
        alone_s, together_s = _latencies(rates_per_s, cv)
        yield Row(label, theirs, alone_s / together_s)


def _queue_rows() -> Iterator[Row]:
    for rate_per_s in (1.0, 2.0, 3.0):
        alone_s, together_s = _latencies((rate_per_s / 2,) * 2, 1.0)
        wait_s = rate_per_s * _REQUEST_S**2 / (4 - 2 * rate_per_s * _REQUEST_S)
        yield Row(f"{rate_per_s:g} a second, a model on each GPU", _REQUEST_S + wait_s, alone_s)
        yield Row(f"{rate_per_s:g} a second, both on a pipeline", _REQUEST_S + wait_s / 2, together_s)


_METHOD = "simulated: 0.4 s a request, for 20,000 s, on the placement that is found"

TABLES = (
    PaperTable(
        "Li et al., OSDI 2023, arXiv 2302.11665, two models on two GPUs as M/D/1 queues",
        "mean latency, s",
        f"{_METHOD}; theirs is the closed form",
        _queue_rows,
        tolerance=0.02,
        caveat="arrivals are drawn, so their mean differs a little from the expected one",
    ),
    PaperTable(
        "Li et al., OSDI 2023, arXiv 2302.11665, section 3.1, two models of 6.7 billion parameters on two GPUs",
        "mean latency with a model on each GPU, divided by that with both on a pipeline of both",
        f"{_METHOD}, 3 requests a second",
        _rows,
        tolerance=0.25,
        caveat="a pipeline costs nothing here; in the last case a GPU is busy for 96 % of the time, so that the mean "
        "depends much on the exact times and on what is drawn",
    ),
    *PROGRAM,
)
