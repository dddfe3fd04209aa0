"""Algorithm 1: which models go on which groups, when the groups are given, guided by simulation (section 4.2)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from trainyard.serve.errors import ServeError
from trainyard.serve.policies.alpaserve.problem import Layout, ParallelConfig, PlacementProblem
from trainyard.serve.policies.alpaserve.simulate import Goodput, simulate

__all__ = ["beam_selection", "greedy_selection", "with_model"]


def greedy_selection(problem: PlacementProblem, shapes: tuple[ParallelConfig, ...]) -> Layout:
    """The paper's fast heuristic: one simulation for each replica that is placed.

    Every time the model with the most unserved requests goes on the group that is used least and has room for it.
    Ties: of models the last, of groups the first, where groups are in the order of their models.

    Parameters
    ----------
    shapes : of every group.
    """
    layout: Layout | None = Layout(shapes, ((),) * len(shapes))
    found = layout
    while layout is not None:
        found = layout
        layout = _with_most_unserved(problem, layout, simulate(problem, layout))
    assert found is not None
    return found


def _with_most_unserved(problem: PlacementProblem, layout: Layout, outcome: Goodput) -> Layout | None:
    """A layout with one replica more; None if nothing fits."""
    unserved = outcome.asked * (1 - outcome.good / (outcome.asked + 1e-6))
    models = np.argsort(unserved, kind="stable")[::-1].tolist()
    for g in np.argsort(outcome.sent, kind="stable").tolist():
        for m in models:
            if m not in layout.models[g] and problem.fits(layout.shapes[g], (*layout.models[g], m)):
                return with_model(layout, g, m).ordered()
    return None


def with_model(layout: Layout, group: int, model: int) -> Layout:
    """A layout with one more model on a group."""
    models = list(layout.models)
    models[group] = tuple(sorted((*models[group], model)))
    return layout._replace(models=tuple(models))


def beam_selection(
    problem: PlacementProblem, shapes: tuple[ParallelConfig, ...], beam_size: int = 1
) -> Layout:
    """Algorithm 1 in full: every replica that could be placed is simulated, and the best placements are kept.

    Parameters
    ----------
    shapes : of every group.
    beam_size : placements that are kept in every step (k).

    Raises
    ------
    ServeError
        If ``beam_size`` is below 1.
    """
    if beam_size < 1:
        raise ServeError(f"beam_size is {beam_size}; allowed is 1 or more")
    best = Layout(shapes, ((),) * len(shapes)).ordered()
    best_score = simulate(problem, best).score
    beam = [best]
    while beam:
        candidates = sorted({more for layout in beam for more in _with_one_more(problem, layout)})
        scored = sorted(((simulate(problem, c).score, c) for c in candidates), key=lambda s: -s[0])[
            :beam_size
        ]
        beam = [layout for _, layout in scored]
        if scored and scored[0][0] > best_score:
            best_score, best = scored[0]
    return best


def _with_one_more(problem: PlacementProblem, layout: Layout) -> Iterator[Layout]:
    for g, models in enumerate(layout.models):
        for m in range(len(problem.models)):
            if m not in models and problem.fits(layout.shapes[g], (*models, m)):
                yield with_model(layout, g, m).ordered()
