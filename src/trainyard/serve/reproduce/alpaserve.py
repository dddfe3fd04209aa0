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
_CASES = {
    "Poisson": ((1.5, 1.5), 1.0, 1.3),
    "Gamma, coefficient of variation 3": ((1.5, 1.5), 3.0, 1.9),
    "Poisson, 20 % and 80 % of the requests": ((0.6, 2.4), 1.0, 6.6),
}
"""Requests per second of each model, coefficient of variation of the gaps, and the ratio of latencies."""


def _rows() -> Iterator[Row]:
    stage_s = {ParallelConfig(1): (0.4,), ParallelConfig(2): (0.2, 0.2)}
    models = tuple(ModelProfile(f"m{i}", 13.4e9, stage_s, _ANY_S) for i in range(2))
    for label, (rates_per_s, cv, theirs) in _CASES.items():
        problem = PlacementProblem(models, 2, 14e9, gamma_arrivals(rates_per_s, cv, 0, 20_000))
        alone, together = (
            simulate(problem, place(problem)).mean_latency_s
            for place in (replication, lambda each: mixed_search(each, num_moves=0))
        )
        yield Row(label, theirs, alone / together)


TABLES = (
    PaperTable(
        "Li et al., OSDI 2023, arXiv 2302.11665, section 3.1, two models of 6.7 billion parameters on two GPUs",
        "mean latency with a model on each GPU, by that with both on a pipeline of both GPUs",
        "simulated: 3 requests per second, 0.4 s each, for 20,000 s, on the placement that is found",
        _rows,
        tolerance=0.25,
        caveat="a pipeline costs nothing here; in the last case a GPU is busy for 96 % of the time, so that the mean "
        "depends much on the exact times and on what is drawn",
    ),
    *PROGRAM,
)
