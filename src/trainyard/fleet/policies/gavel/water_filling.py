"""Gavel, water filling: max-min fairness that goes on where the poorest can have no more, on one level or on two.

Narayanan et al., OSDI 2020, section 4.3. Jobs belong to entities (virtual clusters) with weights. An
entity's weight is split among its jobs that can still grow, by their weights ("fairness"), or goes to the first of them
("fifo"). All jobs' normalised throughputs grow at once in proportion to what they got; those that can grow no more are
the bottleneck and stay, the weights are split again, and so on, until nobody can grow.

The paper finds bottlenecks with an integer program. Here the prices of the linear program tell: a job whose rate has a
price is bottlenecked in every solution, at least one has, and one that has none though bottlenecked has it the next time.
Where no jobs may share devices, the levels and the prices are found without that program: they are the same, since only
the devices couple jobs, and so they follow from prices of the types alone (`solver.prices`).

Fidelity: simplified. Nothing is measured: the speeds of pairs that share devices are known, or estimated as in section 6.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from trainyard.fleet.pairs import check_pairs
from trainyard.fleet.policies.gavel.policy import Gavel
from trainyard.fleet.policies.gavel.problem import Fractions, Problem, alike
from trainyard.fleet.policies.gavel.solver.prices import filled, split
from trainyard.fleet.policies.gavel.solver.program import solve_in_highs
from trainyard.fleet.site import FleetError

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

Inner = Literal["fairness", "fifo"]
_INNERS = " or ".join(map(repr, get_args(Inner)))

_PRICED = 1e-9
"""Prices below count as none: the prices of one program sum to about 1."""


@dataclass(frozen=True, kw_only=True)
class WaterFilling(Gavel):
    """Water filling on one level: max-min fairness in which nobody can have more unless somebody poorer has less."""

    def fractions(self, problem: Problem, kept: Any) -> tuple[Fractions, Any]:
        everybody = np.zeros(problem.num_jobs, np.int64)
        one = Entities(everybody, np.array([problem.weight.sum()]), np.array([False]))
        return fill_water(problem, one), None


@dataclass(frozen=True, kw_only=True)
class Hierarchical(Gavel):
    """Weighted fairness among virtual clusters, and fairness or first in, first out within each.

    Attributes
    ----------
    inner : what holds within virtual clusters that ``inners`` does not name.
    inners, weights : by virtual cluster; a weight is above 0, and 1 where nothing is said.

    Raises
    ------
    FleetError
        If one of these is something else.
    """

    inner: Inner = "fairness"
    inners: tuple[tuple[str, Inner], ...] = ()
    weights: tuple[tuple[str, float], ...] = ()
    by_entity: bool = field(default=True, init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.inner not in get_args(Inner):
            raise FleetError(f"inner of gavel_hierarchical is {_INNERS}, got {self.inner!r}")
        check_pairs(
            "inners of gavel_hierarchical", self.inners, _INNERS, lambda rule: rule in get_args(Inner)
        )
        check_pairs("weights of gavel_hierarchical", self.weights, "a finite weight above 0", _is_weight)

    def fractions(self, problem: Problem, kept: Any) -> tuple[Fractions, Any]:
        names, inners, weights = sorted(set(problem.entity)), dict(self.inners), dict(self.weights)
        number = {name: place for place, name in enumerate(names)}
        entities = Entities(
            np.array([number[name] for name in problem.entity]),
            np.array([weights.get(name, 1.0) for name in names]),
            np.array([inners.get(name, self.inner) == "fifo" for name in names]),
        )
        return fill_water(problem, entities), None


def _is_weight(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf


@dataclass(frozen=True, eq=False)
class Entities:
    """Who the jobs belong to.

    Attributes
    ----------
    entity : of every job, by number.
    weight : of every entity.
    is_fifo : whether in an entity all goes to the first job that can still grow.
    """

    entity: Ints
    weight: Floats
    is_fifo: Bools


def fill_water(problem: Problem, of: Entities) -> Fractions:
    """Water filling (algorithm 1 of the appendix)."""
    if not problem.by_prices:
        return _filled_in_highs(problem, of)
    order, rate = np.arange(problem.num_jobs), problem.scaled_throughputs
    # Jobs are one where all else is equal, unless the first of them comes first.
    come = np.where(of.is_fifo[of.entity], order, -1)
    first, member, count, held = alike(problem, rate, problem.weight, of.entity, come)
    found = filled(
        rate[first], held, problem.weight[first], count.astype(float), first, of.entity[first], of.weight, of.is_fifo
    )  # fmt: skip
    return Fractions.without_pairs(found[member])


def _filled_in_highs(problem: Problem, of: Entities) -> Fractions:
    """The same also where two jobs may share devices: a linear program for every bottleneck."""
    rate, ones, order = problem.scaled_throughputs, np.ones(problem.num_jobs), np.arange(problem.num_jobs)
    level, grows = np.zeros(problem.num_jobs), np.ones(problem.num_jobs, np.bool_)
    fraction = Fractions.without_pairs(np.zeros_like(problem.throughputs))
    while grows.any():
        share = split(grows, problem.weight, ones, order, of.entity, of.weight, of.is_fifo)
        found = solve_in_highs(problem, rate, share=share, need=level)
        if found is None:
            # What was reached is no longer feasible by a rounding error: it is the end.
            break
        fraction, solution = found
        level = np.where(share > 0, level + share * solution.level, level) * (1 - 1e-9)
        stuck = grows & (share > 0) & (solution.price > _PRICED)
        if not stuck.any():
            break
        grows &= ~stuck
    return fraction
