"""Gavel, makespan: the last of the jobs that are there ends as early as can be.

Narayanan et al., OSDI 2020, section 4.2::

    minimise X  max over m  num_steps_m / throughput(m, X)

With 1 / makespan as the level this is one linear program. The authors' program looks for the makespan by bisection, to
a twentieth, and takes what its solver finds for the last length of time that sufficed. Of the best fractions those with
most throughput are taken.

Fidelity: simplified. Nothing is measured: the speeds of pairs that share devices are known, or estimated as in section 6.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainyard.fleet.policies.gavel.best import with_highest_level
from trainyard.fleet.policies.gavel.burden import ALL, least_part
from trainyard.fleet.policies.gavel.centre import centre
from trainyard.fleet.policies.gavel.pairs import Fractions
from trainyard.fleet.policies.gavel.policy import Gavel, SolverName, SpaceSharing
from trainyard.fleet.policies.gavel.problem import Problem
from trainyard.fleet.rounds.rounds import Published
from trainyard.fleet.snapshot import Need

Floats = NDArray[np.float64]


def makespan(
    aware: bool = True,
    as_published: bool = False,
    seed: int = 0,
    space_sharing: SpaceSharing = False,
    solver: SolverName = "prices",
) -> Gavel:
    """Least makespan.

    Parameters
    ----------
    aware : False takes all types for the first one.
    as_published : keep to the authors' program: its rules of rounds, and its bisection.
    seed : of the program.
    space_sharing : two jobs may have the same devices at once; "estimated" if only some of their speeds then are known.
    solver : "highs" has HiGHS solve every program; "prices", which is faster, only those of jobs that share devices.
    """
    published = Published(shuffle=not aware, seed=seed) if as_published else None
    objective = _bisected if as_published else _shortest
    needs: frozenset[Need] = frozenset({"speed", "length"})
    return Gavel(objective, needs, aware, published=published, space_sharing=space_sharing, solver=solver)


def _shortest(problem: Problem, kept: Any) -> tuple[Fractions, None]:
    # In parts of the longest job's time, so that the level is near to 1.
    longest_s = (problem.left / problem.speed.max(axis=1)).max()
    rate = problem.speed * (longest_s / problem.left)[:, None]
    return with_highest_level(problem, rate), None


def _bisected(problem: Problem, kept: Any) -> tuple[Fractions, None]:
    held, fastest = problem.gang[:, None] / np.maximum(problem.room, 1), problem.speed.max(axis=1)
    price = np.full(len(problem.room), 1 / len(problem.room))

    def suffices(length_s: float) -> bool:
        need = problem.left / length_s
        return bool((need <= fastest).all()) and least_part(problem.speed, held, need, price, ALL)[0] <= ALL

    least_s, most_s, limit_s = 100.0, 1e6, 1e6
    enough_s: float | None = None
    while enough_s is None:
        while 1.05 * least_s < most_s:
            middle_s = (least_s + most_s) / 2
            if suffices(middle_s):
                enough_s = most_s = middle_s
            else:
                least_s = middle_s
        least_s, limit_s = limit_s, limit_s * 10
        most_s = limit_s
    found = centre(problem.speed, problem.gang, problem.room, need=problem.left / enough_s)
    return _shortest(problem, kept) if found is None else (Fractions.without_pairs(found), None)
