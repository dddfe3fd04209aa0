"""AlpaServe's simulator: requests on groups of pipeline stages, first come, first served (section 4.2).

A request goes to the group that has its model and whose last stage is free first. It is refused at once if it would miss
its objective there, so that it takes no time from others; the times of stages are known, so that nothing else can happen.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trainyard.compiling import lean
from trainyard.serve.policies.alpaserve.problem import Arrivals, Floats, Ints, Layout, PlacementProblem

__all__ = ["Goodput", "simulate"]


@dataclass(frozen=True)
class Goodput:
    """What became of the requests.

    Attributes
    ----------
    good : requests within their objective, of every model.
    asked : requests, of every model.
    sent : requests that were sent to every group, whether it took them or not.
    mean_latency_s : over all requests; one that was refused counts as 0 s.
    num_replicas : of the layout.
    busy_s : time in which every stage of every group computes; shape ``(groups, stages)``.
    """

    good: Ints
    asked: Ints
    sent: Ints
    mean_latency_s: float
    num_replicas: int
    busy_s: Floats

    @property
    def goodput(self) -> float:
        """Fraction of the requests within their objective (SLO attainment); 1 if there is none."""
        asked = int(self.asked.sum())
        return int(self.good.sum()) / asked if asked else 1.0

    @property
    def score(self) -> float:
        """What is compared: goodput; where that is equal, latency and replicas."""
        return self.goodput - self.mean_latency_s * 1e-4 + self.num_replicas * 1e-6


def simulate(problem: PlacementProblem, layout: Layout, arrivals: Arrivals | None = None) -> Goodput:
    """What becomes of the requests on a layout.

    Parameters
    ----------
    arrivals : those of the problem, unless given.
    """
    arrivals = problem.arrivals if arrivals is None else arrivals
    num_groups, num_models = len(layout.shapes), len(problem.models)
    is_placed = np.zeros((num_models, num_groups), np.bool_)
    for g, models in enumerate(layout.models):
        is_placed[list(models), g] = True
    shape_of = np.array([problem.shapes.index(s) for s in layout.shapes], np.int64)
    num_stages = np.array([shape.pipeline_stages for shape in layout.shapes], np.int64)
    good, asked = np.zeros(num_models, np.int64), np.zeros(num_models, np.int64)
    sent = np.zeros(num_groups, np.int64)
    free_s = np.zeros((num_groups + 1, problem.stage_table.shape[2]))
    busy_s = np.zeros((num_groups, free_s.shape[1]))
    total_s = _serve(
        arrivals.arrival_s, arrivals.model, problem.objective_s, problem.overhead_s, problem.stage_table,
        is_placed, shape_of, num_stages, free_s, good, asked, sent, busy_s,
    )  # fmt: skip
    mean_s = total_s / max(len(arrivals.model), 1)
    return Goodput(good, asked, sent, mean_s, layout.num_replicas, busy_s)


@lean
def _serve(  # type: ignore[no-untyped-def]
    arrival_s,
    model_of,
    objective_s,
    overhead_s,
    stage_s,
    is_placed,
    shape_of,
    num_stages,
    free_s,
    good,
    asked,
    sent,
    busy_s,
):
    """Serve the requests; returns the sum of the latencies of those that were taken.

    Parameters
    ----------
    free_s : when every stage of every group is free; its last row is for times that are not certain yet.
    good, asked, sent, busy_s : counted here, see `Goodput`.
    """
    total_s, num_groups = 0.0, len(shape_of)
    for i in range(len(arrival_s)):
        model, chosen, earliest_s = model_of[i], -1, np.inf
        asked[model] += 1
        for group in range(num_groups):
            last_s = free_s[group, num_stages[group] - 1]
            if is_placed[model, group] and last_s < earliest_s:
                chosen, earliest_s = group, last_s
        if chosen < 0:
            continue
        sent[chosen] += 1
        now_s, stages = arrival_s[i], stage_s[shape_of[chosen], model]
        for stage in range(num_stages[chosen]):
            now_s = max(now_s, free_s[chosen, stage]) + stages[stage]
            free_s[num_groups, stage] = now_s
        latency_s = now_s + overhead_s - arrival_s[i]
        if latency_s <= objective_s[model]:
            good[model] += 1
            total_s += latency_s
            for stage in range(num_stages[chosen]):
                free_s[chosen, stage] = free_s[num_groups, stage]
                busy_s[chosen, stage] += stages[stage]
    return total_s
