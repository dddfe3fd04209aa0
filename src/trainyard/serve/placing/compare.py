"""Several policies of placement on the same models, devices and requests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from trainyard.serve.errors import ServeError
from trainyard.serve.placing.decisions import PlacedModels
from trainyard.serve.placing.policies import parse_placers
from trainyard.serve.placing.problem import PlacingProblem
from trainyard.serve.policies.alpaserve.problem import Arrivals

__all__ = ["CannotPlace", "PlacementRun", "compare_placements"]


@dataclass(frozen=True)
class PlacementRun:
    """A policy, with its placement and what becomes of requests on it.

    Attributes
    ----------
    name : of the policy, with its options.
    placed : what it decided, simulated.
    """

    name: str
    placed: PlacedModels


@dataclass(frozen=True)
class CannotPlace:
    """A policy that has no placement.

    Attributes
    ----------
    name : of the policy, with its options.
    why : in a sentence.
    """

    name: str
    why: str


def compare_placements(
    policies: str,
    problem: PlacingProblem,
    arrivals: Arrivals,
    tell: Callable[[str], None] = lambda name: None,
) -> tuple[tuple[PlacementRun, ...], tuple[CannotPlace, ...]]:
    """Place models by policies, and serve requests on each placement.

    Parameters
    ----------
    policies : names joined by commas, as `parse_placers` reads them.
    arrivals : requests that are served.
    tell : is told which policy is next.

    Returns
    -------
    Runs, best first: most requests within their objective, then the shortest latency; and policies without a placement.

    Raises
    ------
    ServeError
        If a name or an option is unknown.
    """
    runs, cannot = [], []
    for name, placer in parse_placers(policies):
        tell(name)
        try:
            runs.append(PlacementRun(name, placer.decide(problem).serve(arrivals)))
        except ServeError as error:
            cannot.append(CannotPlace(name, str(error)))
    runs.sort(key=lambda run: run.placed.rank)
    return tuple(runs), tuple(cannot)
