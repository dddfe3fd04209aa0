"""Gavel, first in, first out: early jobs on the types that are fastest for them.

Narayanan et al., OSDI 2020, section 4.2, with jobs m numbered from 0 in the order of their arrival, M in all::

    maximise X  sum over m  throughput(m, X) / throughput(m, X^fastest) * (M - m)

The authors' program solves no such program but deals types out: it goes through the jobs in order until one fits
nowhere, and gives each the type that is fastest for it of those with enough devices left. Not aware of types, it keeps
what it gave, draws a type at random and gives the last type in the alphabet that has any devices left, whether they
suffice or not; what it drew decides which type it takes for used up.

Fidelity: simplified. Nothing is measured: the speeds of pairs that share devices are known, or estimated as in section 6.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainyard.fleet.policies.gavel.best import with_most_reward
from trainyard.fleet.policies.gavel.pairs import Fractions
from trainyard.fleet.policies.gavel.policy import Gavel, SolverName, SpaceSharing
from trainyard.fleet.policies.gavel.problem import Problem
from trainyard.fleet.rounds.rounds import Published
from trainyard.fleet.snapshot import Need

Floats = NDArray[np.float64]


def gavel_fifo(
    aware: bool = True,
    as_published: bool = False,
    seed: int = 0,
    space_sharing: SpaceSharing = False,
    solver: SolverName = "prices",
) -> Gavel:
    """First in, first out.

    Parameters
    ----------
    aware : False takes all types for alike.
    as_published : keep to the authors' program: its rules of rounds, and types dealt out.
    seed : of the program.
    space_sharing : two jobs may have the same devices at once; "estimated" if only some of their speeds then are known.
    solver : "highs" has HiGHS solve every program; "prices", which is faster, only those of jobs that share devices.
    """
    needs: frozenset[Need] = frozenset({"speed"})
    if not as_published:
        return Gavel(_earliest, needs, aware, leftovers=False, space_sharing=space_sharing, solver=solver)
    published = Published(shuffle=not aware, seed=seed)
    if aware:
        return Gavel(
            _dealt_fastest,
            needs,
            leftovers=False,
            published=published,
            space_sharing=space_sharing,
            solver=solver,
        )
    start = _Dealt({}, random.Random(seed).getstate())
    return Gavel(
        _dealt_blindly, needs, False, False, published, start, space_sharing=space_sharing, solver=solver
    )


def _earliest(problem: Problem, kept: Any) -> tuple[Fractions, None]:
    rate = problem.speed / problem.speed.max(axis=1, keepdims=True)
    places = np.arange(problem.num_jobs, 0, -1) / problem.num_jobs
    return with_most_reward(problem, rate * places[:, None]), None


def _dealt_fastest(problem: Problem, kept: Any) -> tuple[Fractions, None]:
    left, fraction = problem.room.copy(), np.zeros_like(problem.speed)
    alphabetical = np.array(_alphabetical(problem))
    for job in range(problem.num_jobs):
        fits = alphabetical[left[alphabetical] >= problem.gang[job]]
        if not len(fits):
            break
        kind = fits[np.argmax(problem.speed[job, fits])]
        if problem.able[job, kind]:
            fraction[job, kind] = 1.0
            left[kind] -= int(problem.gang[job])
    return Fractions.without_pairs(fraction), None


@dataclass(frozen=True)
class _Dealt:
    """Type of every job, by serial number, that got one; and the state of the draws."""

    kinds: dict[int, int]
    draws: Any


def _dealt_blindly(problem: Problem, kept: _Dealt) -> tuple[Fractions, _Dealt]:
    serials = problem.serial.tolist()
    number = {serial: job for job, serial in enumerate(serials)}
    left, kinds = problem.room.tolist(), dict(kept.kinds)
    queue = [serial for serial in serials if serial not in kinds]
    for serial, kind in sorted(kept.kinds.items()):
        if serial in number:
            left[kind] -= int(problem.gang[number[serial]])
            continue
        # The first that waits takes the place of one that ended.
        del kinds[serial]
        if queue and problem.gang[number[queue[0]]] <= left[kind] and problem.able[number[queue[0]], kind]:
            heir = queue.pop(0)
            kinds[heir] = kind
            left[kind] -= int(problem.gang[number[heir]])
    draws = random.Random()
    draws.setstate(kept.draws)
    open_kinds = [kind for kind in _alphabetical(problem) if left[kind] > 0]
    for serial in queue:
        gang = int(problem.gang[number[serial]])
        fits = [place for place, kind in enumerate(open_kinds) if left[kind] >= gang]
        if not fits:
            break
        drawn, kind = fits[draws.randrange(len(fits))], open_kinds[-1]
        if problem.able[number[serial], kind]:
            kinds[serial] = kind
            left[kind] -= gang
            if left[kind] == 0:
                open_kinds.pop(drawn)
    fraction = np.zeros_like(problem.speed)
    for serial, kind in kinds.items():
        fraction[number[serial], kind] = 1.0
    return Fractions.without_pairs(fraction), _Dealt(kinds, draws.getstate())


def _alphabetical(problem: Problem) -> list[int]:
    return sorted(range(len(problem.kinds)), key=lambda kind: problem.kinds[kind].lower())
