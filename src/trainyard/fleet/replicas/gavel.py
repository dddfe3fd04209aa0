"""Gavel's policies as in the program that its authors published: its objectives, the solutions that it takes, its rounds.

Narayanan et al., "Heterogeneity-Aware Cluster Scheduling Policies for Deep Learning Workloads", OSDI 2020;
stanford-futuredata/gavel at c4fa400, ``scheduler/policies``. Where many fractions are best, the program takes those to
which its solver comes (`centre`). It looks for the makespan by bisection, to a twentieth. It maximises sums of
throughputs, also over cost, in each job's own unit. Water filling and the hierarchical policy differ only in the rounds.

Its finish-time fairness is a cone program in one; here the least worst slowdown is found as in the policy itself, and a
linear program then solved from inside, so that of many best fractions it may come to others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainyard.fleet.errors import FleetError
from trainyard.fleet.periods import Rounds
from trainyard.fleet.policies.gavel.finish_time import FinishTimeFairness
from trainyard.fleet.policies.gavel.objectives import LeastCost, LeastMakespan, MaxMinFairness, MostThroughput
from trainyard.fleet.policies.gavel.policy import Gavel
from trainyard.fleet.policies.gavel.problem import Fractions, Problem
from trainyard.fleet.policies.gavel.solver import can_have, least_slowed, rates_for, solve
from trainyard.fleet.policies.gavel.water_filling import Hierarchical, WaterFilling
from trainyard.fleet.replicas.centre import centre
from trainyard.fleet.replicas.gavel_rounds import GavelRounds

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class GavelProgram(Gavel):
    """What all policies of the program have in common.

    Attributes
    ----------
    hold_s : least time between two decisions.
    seed : of the program.

    Raises
    ------
    FleetError
        If jobs are to share devices, or HiGHS is to solve.
    """

    hold_s: float = 1920.0
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.space_sharing or self.solver != "prices":
            raise FleetError(
                "Gavel's program is repeated without pairs of jobs, and solves as it does: give neither space_sharing "
                "nor solver"
            )

    def rounds(self, given: Rounds | None) -> Rounds:
        """The program's, as long as those that are given."""
        length_s = super().rounds(given).round_s
        return GavelRounds(length_s, self.hold_s, shuffle=not self.aware, seed=self.seed)

    def seen_speed(self, speed: Floats) -> Floats:
        """If it takes all types for alike, it believes that jobs run also where they cannot."""
        return speed if self.aware else np.ones_like(speed)


@dataclass(frozen=True, kw_only=True)
class MaxMinProgram(MaxMinFairness, GavelProgram):
    """Max-min fairness, solved from inside."""

    def fractions(self, problem: Problem, kept: Any) -> tuple[Fractions, Any]:
        rate = problem.scaled_throughputs / problem.weight[:, None]
        found = centre(rate, problem.scale_factors, problem.devices_of_type, share=np.ones(problem.num_jobs))
        return super().fractions(problem, kept) if found is None else (Fractions.without_pairs(found), None)


@dataclass(frozen=True, kw_only=True)
class MakespanProgram(LeastMakespan, GavelProgram):
    """Least makespan by bisection; what the solver finds for the last length of time that sufficed."""

    def fractions(self, problem: Problem, kept: Any) -> tuple[Fractions, Any]:
        need = problem.left / _bisected_s(problem)
        found = centre(problem.throughputs, problem.scale_factors, problem.devices_of_type, need=need)
        return super().fractions(problem, kept) if found is None else (Fractions.without_pairs(found), None)


def _bisected_s(problem: Problem) -> float:
    least_s, most_s, limit_s = 100.0, 1e6, 1e6
    enough_s: float | None = None
    while enough_s is None:
        while 1.05 * least_s < most_s:
            middle_s = (least_s + most_s) / 2
            if can_have(problem, problem.throughputs, problem.left / middle_s):
                enough_s = most_s = middle_s
            else:
                least_s = middle_s
        least_s, limit_s = limit_s, limit_s * 10
        most_s = limit_s
    return enough_s


@dataclass(frozen=True, kw_only=True)
class FinishTimeProgram(FinishTimeFairness, GavelProgram):
    """Least worst slowdown, solved from inside."""

    def best(self, problem: Problem, whole_s: Floats) -> Fractions:
        fraction, rho = least_slowed(problem, whole_s)
        rate = rates_for(problem, whole_s, rho)
        found = centre(rate, problem.scale_factors, problem.devices_of_type, share=np.ones(problem.num_jobs))
        return fraction if found is None else Fractions.without_pairs(found)


@dataclass(frozen=True, kw_only=True)
class CostProgram(LeastCost, GavelProgram):
    """Most throughput over dollars, summed over jobs."""

    def best(self, problem: Problem, price: Floats, need: Floats | None) -> Fractions:
        return solve(problem, problem.relative_throughputs, reward=problem.throughputs / price, need=need)


@dataclass(frozen=True, kw_only=True)
class ThroughputProgram(MostThroughput, GavelProgram):
    """Most throughput of all jobs together, each in its own unit."""

    def fractions(self, problem: Problem, kept: Any) -> tuple[Fractions, Any]:
        return solve(problem, problem.throughputs, reward=problem.throughputs), None


@dataclass(frozen=True, kw_only=True)
class WaterFillingProgram(WaterFilling, GavelProgram):
    """Water filling on one level."""


@dataclass(frozen=True, kw_only=True)
class HierarchicalProgram(Hierarchical, GavelProgram):
    """Fairness among virtual clusters."""
