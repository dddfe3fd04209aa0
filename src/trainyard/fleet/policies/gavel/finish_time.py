"""Gavel, finish-time fairness: nobody is slowed much more by the others than by an n-th of the cluster.

Narayanan et al., OSDI 2020, section 4.2, after Themis (NSDI 2020)::

    minimise X  max over m  rho_m = (t_m + num_steps_m / throughput(m, X)) / T_m

where t_m is the time since the job came and T_m the time that it would take on its own part of the cluster, 1 of n:
what its steps so far would have taken on the parts that it had, and the rest on the part of now. For a given rho every
job needs ``num_steps_m / (rho T_m - t_m)``; a linear program says whether all can have that, and if not, leads to the
next rho. Then, of the best fractions, those with most throughput are taken.

Fidelity: simplified. Nothing is measured: the speeds of pairs that share devices are known, or estimated as in section 6.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trainyard.fleet.policies.gavel.policy import Gavel
from trainyard.fleet.policies.gavel.problem import Fractions, Problem
from trainyard.fleet.policies.gavel.solver import least_slowed
from trainyard.fleet.snapshot import Need

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class _Alone:
    """What jobs would have had on their own parts.

    Attributes
    ----------
    serial, left : of the jobs that were ever decided on, as they were then.
    speed : of each on its part since then.
    past_s : what its steps before would have taken.
    """

    serial: Ints
    left: Floats
    speed: Floats
    past_s: Floats


@dataclass(frozen=True, kw_only=True)
class FinishTimeFairness(Gavel):
    """Least worst slowdown."""

    @property
    def needs(self) -> frozenset[Need]:
        """Speeds, and how much work is left."""
        return frozenset({"speed", "length"})

    @property
    def start_with(self) -> _Alone:
        """Nobody was ever there."""
        return _Alone(np.zeros(0, np.int64), np.zeros(0), np.zeros(0), np.zeros(0))

    def fractions(self, problem: Problem, kept: _Alone) -> tuple[Fractions, _Alone]:
        alone, own = _reckoned(problem, kept), slice(problem.num_jobs)
        return self.best(problem, alone.past_s[own] + problem.left / alone.speed[own]), alone

    def best(self, problem: Problem, whole_s: Floats) -> Fractions:
        """Fractions with the least worst slowdown.

        Parameters
        ----------
        whole_s : that every job would take on its own part of the cluster.
        """
        return least_slowed(problem, whole_s)[0]


def _reckoned(problem: Problem, kept: _Alone) -> _Alone:
    past_s = np.zeros(problem.num_jobs)
    _, own, old = np.intersect1d(problem.serial, kept.serial, assume_unique=True, return_indices=True)
    if len(own):
        past_s[own] = kept.past_s[old] + (kept.left[old] - problem.left[own]) / kept.speed[old]
    # Jobs that wait for nodes that are away are not in this decision, and will be in a later one.
    others = ~np.isin(kept.serial, problem.serial) & np.isin(kept.serial, problem.waiting)
    serial = np.concatenate((problem.serial, kept.serial[others]))
    left = np.concatenate((problem.left, kept.left[others]))
    speed = np.concatenate((problem.isolated_throughput, kept.speed[others]))
    return _Alone(serial, left, speed, np.concatenate((past_s, kept.past_s[others])))
