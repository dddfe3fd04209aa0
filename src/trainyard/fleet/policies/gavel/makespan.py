"""Gavel, makespan: the last of the jobs that are there ends as early as can be.

Narayanan et al., OSDI 2020, section 4.2::

    minimise X  max over m  num_steps_m / throughput(m, X)

With 1 / makespan as the level this is one linear program. Of the best fractions those with most throughput are taken.

Fidelity: simplified. Nothing is measured: the speeds of pairs that share devices are known, or estimated as in section 6.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from trainyard.fleet.policies.gavel.best import with_highest_level
from trainyard.fleet.policies.gavel.pairs import Fractions
from trainyard.fleet.policies.gavel.policy import Gavel
from trainyard.fleet.policies.gavel.problem import Problem
from trainyard.fleet.snapshot import Need


@dataclass(frozen=True, kw_only=True)
class LeastMakespan(Gavel):
    """Least makespan."""

    @property
    def needs(self) -> frozenset[Need]:
        """Speeds, and how much work is left."""
        return frozenset({"speed", "length"})

    def fractions(self, problem: Problem, kept: Any) -> tuple[Fractions, Any]:
        # In parts of the longest job's time, so that the level is near to 1.
        longest_s = (problem.left / problem.speed.max(axis=1)).max()
        rate = problem.speed * (longest_s / problem.left)[:, None]
        return with_highest_level(problem, rate), None
