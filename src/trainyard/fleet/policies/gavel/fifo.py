"""Gavel, first in, first out: early jobs on the types that are fastest for them.

Narayanan et al., OSDI 2020, section 4.2, with jobs m numbered from 0 in the order of their arrival, M in all::

    maximise X  sum over m  throughput(m, X) / throughput(m, X^fastest) * (M - m)

Fidelity: simplified. Nothing is measured: the speeds of pairs that share devices are known, or estimated as in section 6.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from trainyard.fleet.policies.gavel.best import with_most_reward
from trainyard.fleet.policies.gavel.pairs import Fractions
from trainyard.fleet.policies.gavel.policy import Gavel
from trainyard.fleet.policies.gavel.problem import Problem


@dataclass(frozen=True, kw_only=True)
class GavelFifo(Gavel):
    """First in, first out."""

    leftovers: bool = field(default=False, init=False)

    def fractions(self, problem: Problem, kept: Any) -> tuple[Fractions, Any]:
        rate = problem.speed / problem.speed.max(axis=1, keepdims=True)
        places = np.arange(problem.num_jobs, 0, -1) / problem.num_jobs
        return with_most_reward(problem, rate * places[:, None]), None
