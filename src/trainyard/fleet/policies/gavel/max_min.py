"""Gavel, max-min fairness: least attained service for types that differ.

Narayanan et al., OSDI 2020, section 4.1. Every job's effective throughput is measured in what it would have with equal
shares of every device, times its devices, over its weight; the least of these is made as large as can be::

    maximise X  min over m  scale_factor_m / w_m * throughput(m, X) / throughput(m, X^equal)

Many fractions may have that least; of those the ones with most throughput are taken. Then nobody shares devices without
need, and what is to spare goes where it does most.

Fidelity: simplified. Nothing is measured: the speeds of pairs that share devices are known, or estimated as in section 6.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainyard.fleet.policies.gavel.best import with_highest_level
from trainyard.fleet.policies.gavel.centre import centre
from trainyard.fleet.policies.gavel.pairs import Fractions
from trainyard.fleet.policies.gavel.policy import Gavel, SolverName, SpaceSharing
from trainyard.fleet.policies.gavel.problem import Problem
from trainyard.fleet.rounds.rounds import Published
from trainyard.fleet.snapshot import Need

Floats = NDArray[np.float64]


def max_min_fairness(
    aware: bool = True,
    as_published: bool = False,
    seed: int = 0,
    space_sharing: SpaceSharing = False,
    solver: SolverName = "prices",
) -> Gavel:
    """Max-min fairness, by weights.

    Parameters
    ----------
    aware : False takes all types for alike, as the policies do that the paper compares with.
    as_published : keep to the authors' program: its rules of rounds, and the solutions to which its solver comes.
    seed : of the program.
    space_sharing : two jobs may have the same devices at once; "estimated" if only some of their speeds then are known.
    solver : "highs" has HiGHS solve every program; "prices", which is faster, only those of jobs that share devices.
    """
    published = Published(shuffle=not aware, seed=seed) if as_published else None
    objective = _inner if as_published else _fairest
    needs: frozenset[Need] = frozenset({"speed"})
    return Gavel(objective, needs, aware, published=published, space_sharing=space_sharing, solver=solver)


def normalised(problem: Problem) -> Floats:
    """Effective throughput per fraction of time, in equal shares of the cluster, times devices."""
    found: Floats = problem.speed * (problem.gang / problem.equal_speed)[:, None]
    return found


def _fairest(problem: Problem, kept: Any) -> tuple[Fractions, None]:
    return with_highest_level(problem, normalised(problem) / problem.weight[:, None]), None


def _inner(problem: Problem, kept: Any) -> tuple[Fractions, None]:
    rate = normalised(problem) / problem.weight[:, None]
    found = centre(rate, problem.gang, problem.room, share=np.ones(problem.num_jobs))
    return _fairest(problem, kept) if found is None else (Fractions.without_pairs(found), None)
