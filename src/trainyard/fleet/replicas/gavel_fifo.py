"""Gavel's first in, first out as in the program that its authors published, which deals types out.

Narayanan et al., OSDI 2020; stanford-futuredata/gavel at c4fa400, ``scheduler/policies/fifo.py``. The program goes
through the jobs in order until one fits nowhere, and gives each the type that is fastest for it of those with enough
devices left. Not aware of types, it keeps what it gave, draws a type at random and gives the last type in the alphabet
that has any devices left, whether they suffice or not; what it drew decides which type it takes for used up.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import numpy as np

from trainyard.fleet.policies.gavel.objectives import GavelFifo
from trainyard.fleet.policies.gavel.problem import Fractions, Problem
from trainyard.fleet.replicas.gavel import GavelProgram


@dataclass(frozen=True, kw_only=True)
class FifoProgram(GavelFifo, GavelProgram):
    """First in, first out."""

    @property
    def start_with(self) -> _Dealt | None:
        """Nothing is dealt out; whoever is aware of types does that anew every time."""
        return None if self.aware else _Dealt({}, random.Random(self.seed).getstate())

    def fractions(self, problem: Problem, kept: Any) -> tuple[Fractions, Any]:
        return _dealt_fastest(problem) if self.aware else _dealt_blindly(problem, kept)


def _dealt_fastest(problem: Problem) -> tuple[Fractions, None]:
    left, fraction = problem.devices_of_type.copy(), np.zeros_like(problem.throughputs)
    alphabetical = np.array(_alphabetical(problem))
    for job in range(problem.num_jobs):
        fits = alphabetical[left[alphabetical] >= problem.scale_factors[job]]
        if not len(fits):
            break
        kind = fits[np.argmax(problem.throughputs[job, fits])]
        if problem.able[job, kind]:
            fraction[job, kind] = 1.0
            left[kind] -= int(problem.scale_factors[job])
    return Fractions.without_pairs(fraction), None


@dataclass(frozen=True)
class _Dealt:
    """Type of every job, by serial number, that got one; and the state of the draws."""

    kinds: dict[int, int]
    draws: Any


def _dealt_blindly(problem: Problem, kept: _Dealt) -> tuple[Fractions, _Dealt]:
    serials = problem.serial.tolist()
    number = {serial: job for job, serial in enumerate(serials)}
    left, kinds = problem.devices_of_type.tolist(), dict(kept.kinds)
    queue = [serial for serial in serials if serial not in kinds]
    for serial, kind in sorted(kept.kinds.items()):
        if serial in number:
            left[kind] -= int(problem.scale_factors[number[serial]])
            continue
        # The first that waits takes the place of one that ended.
        del kinds[serial]
        if (
            queue
            and problem.scale_factors[number[queue[0]]] <= left[kind]
            and problem.able[number[queue[0]], kind]
        ):
            heir = queue.pop(0)
            kinds[heir] = kind
            left[kind] -= int(problem.scale_factors[number[heir]])
    draws = random.Random()
    draws.setstate(kept.draws)
    open_kinds = [kind for kind in _alphabetical(problem) if left[kind] > 0]
    for serial in queue:
        gang = int(problem.scale_factors[number[serial]])
        fits = [place for place, kind in enumerate(open_kinds) if left[kind] >= gang]
        if not fits:
            break
        drawn, kind = fits[draws.randrange(len(fits))], open_kinds[-1]
        if problem.able[number[serial], kind]:
            kinds[serial] = kind
            left[kind] -= gang
            if left[kind] == 0:
                open_kinds.pop(drawn)
    fraction = np.zeros_like(problem.throughputs)
    for serial, kind in kinds.items():
        fraction[number[serial], kind] = 1.0
    return Fractions.without_pairs(fraction), _Dealt(kinds, draws.getstate())


def _alphabetical(problem: Problem) -> list[int]:
    return sorted(range(len(problem.device_types)), key=lambda kind: problem.device_types[kind].lower())
