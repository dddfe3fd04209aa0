"""Gavel, water filling: max-min fairness that goes on where the poorest can have no more, on one level or on two.

Narayanan et al., OSDI 2020, section 4.3. Jobs belong to entities (virtual clusters) with weights. An
entity's weight is split among its jobs that can still grow, by their weights ("fairness"), or goes to the first of them
("fifo"). All jobs' normalised throughputs grow at once in proportion to what they got; those that can grow no more are
the bottleneck and stay, the weights are split again, and so on, until nobody can grow.

The paper finds bottlenecks with an integer program. Here the prices of the linear program tell: a job whose rate has a
price is bottlenecked in every solution, at least one has, and one that has none though bottlenecked has it the next time.
Where no jobs may share devices, the levels and the prices are found without that program: they are the same, since only
the devices couple jobs, and so they follow from prices of the types alone (`solver.water`).

Fidelity: simplified. Nothing is measured: the speeds of pairs that share devices are known, or estimated as in section 6.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

import numpy as np

from trainyard.fleet.errors import FleetError
from trainyard.fleet.pairs import check_pairs, check_weights, weights_of
from trainyard.fleet.policies.gavel.policy import Gavel
from trainyard.fleet.policies.gavel.problem import Fractions, Problem
from trainyard.fleet.policies.gavel.solver import Entities, fill_water
from trainyard.fleet.snapshot import Need
from trainyard.fleet.traits import Traits

Inner = Literal["fairness", "fifo"]
_INNERS = " or ".join(map(repr, get_args(Inner)))


@dataclass(frozen=True, kw_only=True)
class WaterFilling(Gavel):
    """Water filling on one level: max-min fairness in which nobody can have more unless somebody poorer has less."""

    @property
    def needs(self) -> frozenset[Need]:
        """Speeds, and weights."""
        return frozenset({"speed", "weight"})

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

    @property
    def needs(self) -> frozenset[Need]:
        """Speeds, and weights."""
        return frozenset({"speed", "weight"})

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.inner not in get_args(Inner):
            raise FleetError(f"inner of gavel_hierarchical is {_INNERS}, got {self.inner!r}")
        check_pairs(
            "inners of gavel_hierarchical", self.inners, _INNERS, lambda rule: rule in get_args(Inner)
        )
        check_weights("weights of gavel_hierarchical", self.weights)

    @property
    def traits(self) -> Traits:
        """Those of Gavel, with the virtual clusters that options name."""
        named = dict.fromkeys(("virtual_cluster", name) for name, _ in (*self.inners, *self.weights))
        return replace(super().traits, named=tuple(named))

    def fractions(self, problem: Problem, kept: Any) -> tuple[Fractions, Any]:
        names, inners = sorted(set(problem.entity)), dict(self.inners)
        number = {name: place for place, name in enumerate(names)}
        entities = Entities(
            np.array([number[name] for name in problem.entity]),
            weights_of(names, self.weights),
            np.array([inners.get(name, self.inner) == "fifo" for name in names]),
        )
        return fill_water(problem, entities), None
