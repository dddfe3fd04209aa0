"""Gavel, max-min fairness: least attained service for types that differ.

Narayanan et al., OSDI 2020, section 4.1. Every job's effective throughput is measured in what it would have with equal
shares of every device, times its devices, over its weight; the least of these is made as large as can be::

    maximise X  min over m  scale_factor_m / w_m * throughput(m, X) / throughput(m, X^equal)

Many fractions may have that least; of those the ones with most throughput are taken. Then nobody shares devices without
need, and what is to spare goes where it does most.

Fidelity: simplified. Nothing is measured: the speeds of pairs that share devices are known, or estimated as in section 6.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainyard.fleet.policies.gavel.best import with_highest_level
from trainyard.fleet.policies.gavel.pairs import Fractions
from trainyard.fleet.policies.gavel.policy import Gavel
from trainyard.fleet.policies.gavel.problem import Problem

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class MaxMinFairness(Gavel):
    """Max-min fairness, by weights."""

    def fractions(self, problem: Problem, kept: Any) -> tuple[Fractions, Any]:
        return with_highest_level(problem, normalised(problem) / problem.weight[:, None]), None


def normalised(problem: Problem) -> Floats:
    """Effective throughput per fraction of time, in equal shares of the cluster, times devices."""
    found: Floats = problem.speed * (problem.gang / problem.equal_speed)[:, None]
    return found
