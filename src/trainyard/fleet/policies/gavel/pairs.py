"""Space sharing: which two jobs may run on the same devices.

Only pairs that gain anything are looked at: those of which both together do more beside each other than in turns, so that
their speeds, in parts of those alone, sum to more than 1. No program needs time of another pair, since to take turns is
as good for both and takes no more time of the devices. The paper says that only pairs which perform well need to be
looked at (section 3.1); the authors' program takes all that were measured to run. It pairs only gangs of one size, as is
done here.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trainyard.fleet.policies.gavel.problem import Pairs
from trainyard.fleet.snapshot import Snapshot

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_GAINS = 1.0 + 1e-9


@dataclass(frozen=True, eq=False)
class Seen:
    """What was found out about kinds of jobs, so that nobody asks again.

    Attributes
    ----------
    kinds : of the jobs of the last decision.
    part : as in `Pairs`.
    """

    kinds: tuple[Hashable, ...]
    part: Floats


def seen_pairs(snapshot: Snapshot, speed: Floats, before: Seen | None) -> tuple[Seen, Pairs]:
    """How fast jobs are beside others; kinds of jobs that were there before are not asked again.

    Parameters
    ----------
    speed : of every job on every type, alone.
    """
    like, example = kinds_of(snapshot)
    kinds = tuple(example)
    part = np.zeros((len(kinds), len(kinds), speed.shape[1]))
    old = {} if before is None else {key: index for index, key in enumerate(before.kinds)}
    known = [key in old for key in kinds]
    if before is not None and any(known):
        here, there = np.nonzero(np.array(known))[0], [old[key] for key in kinds if key in old]
        part[np.ix_(here, here)] = before.part[np.ix_(there, there)]
    numbers = list(example.values())
    for a, one in enumerate(numbers):
        for b, other in enumerate(numbers[: a + 1]):
            if not (known[a] and known[b]):
                part[a, b], part[b, a] = _parts(snapshot, one, other, speed)
    return Seen(kinds, part), Pairs(like, part)


def kinds_of(snapshot: Snapshot) -> tuple[Ints, dict[Hashable, int]]:
    """The kind of every job, and the first job of every kind, in the order of the kinds."""
    keys = [_kind(snapshot, number) for number in range(snapshot.num_jobs)]
    example: dict[Hashable, int] = {}
    for number, key in enumerate(keys):
        example.setdefault(key, number)
    place = {key: index for index, key in enumerate(example)}
    return np.array([place[key] for key in keys], np.int64), example


def gaining(part: Floats) -> Floats:
    """The same with 0 for pairs that do not do more together than in turns."""
    other = part.transpose(1, 0, 2)
    return np.where((part > 0) & (other > 0) & (part + other > _GAINS), part, 0.0)


def _kind(snapshot: Snapshot, number: int) -> Hashable:
    """What jobs have in common that are equal beside others."""
    job = snapshot.job(number)
    key = (job.profile, job.num_devices, int(snapshot.allowed[number]), job.busy, job.model, job.batch_size)
    try:
        hash(key)
    except TypeError:
        return int(snapshot.serial[number])
    return key


def _parts(snapshot: Snapshot, one: int, other: int, speed: Floats) -> tuple[Floats, Floats]:
    """Parts of their speeds alone of two jobs, by type of device; 0 where they gain nothing."""
    parts = np.zeros((2, speed.shape[1]))
    if snapshot.num_devices[one] == snapshot.num_devices[other]:
        for kind in np.nonzero((speed[one] > 0) & (speed[other] > 0))[0].tolist():
            parts[0, kind] = snapshot.speed_beside(one, other, kind) / speed[one, kind]
            parts[1, kind] = snapshot.speed_beside(other, one, kind) / speed[other, kind]
    parts[:, (parts <= 0).any(axis=0) | (parts.sum(axis=0) <= _GAINS)] = 0.0
    return parts[0], parts[1]
