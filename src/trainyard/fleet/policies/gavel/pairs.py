"""Space sharing: which two jobs may run on the same devices, and fractions of time of such pairs.

Only pairs that gain anything are looked at: those of which both together do more beside each other than in turns, so that
their speeds, in parts of those alone, sum to more than 1. No program needs time of another pair, since to take turns is
as good for both and takes no more time of the devices. The paper says that only pairs which perform well need to be
looked at (section 3.1); the authors' program takes all that were measured to run. It pairs only gangs of one size, as is
done here.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from trainyard.fleet.snapshot import Snapshot

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

_GAINS = 1.0 + 1e-9
_NOTHING = 1e-9
"""Fractions of time of pairs up to here are rounding errors of the program."""


@dataclass(frozen=True, eq=False)
class Pairs:
    """How fast jobs are beside others.

    Attributes
    ----------
    like : kind of every job; jobs of one kind are equal beside others.
    part : (kinds of jobs, kinds of jobs, types of device) of its speed alone that one of the first kind has beside one of
        the second; 0 where they do not share.
    is_sure : whether each of these is measured; None if all are.
    """

    like: Ints
    part: Floats
    is_sure: Bools | None = None

    def where(self, able: Bools) -> Pairs:
        """Those that can be now.

        Parameters
        ----------
        able : (jobs, types) whether each can run on a type now.
        """
        runs = np.zeros((len(self.part), able.shape[1]), np.bool_)
        runs[self.like] = able
        return replace(self, part=self.part * (runs[:, None] & runs))

    def of(self, jobs: Ints) -> Pairs:
        """Those of some of the jobs."""
        return replace(self, like=self.like[jobs])

    def are_sure(self, found: Fractions) -> bool:
        """Whether all pairs that get time are measured."""
        if self.is_sure is None:
            return True
        return bool(self.is_sure[self.like[found.first], self.like[found.second], found.device_type].all())


@dataclass(frozen=True, eq=False)
class Fractions:
    """Of the time that combinations of jobs should have every type of device: X in the paper.

    Attributes
    ----------
    alone : of every job (row) on every type, by itself.
    first, second, device_type, together : pairs of jobs, a type, and the fraction of both together.
    """

    alone: Floats
    first: Ints
    second: Ints
    device_type: Ints
    together: Floats

    @classmethod
    def without_pairs(cls, alone: Floats) -> Fractions:
        """Every job by itself."""
        none = np.zeros(0, np.int64)
        return cls(alone, none, none, none, np.zeros(0))


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


def dealt(member: Ints, groups: tuple[Ints, Ints, Ints], together: Floats) -> tuple[Ints, Ints, Ints, Floats]:
    """Which jobs run together, where only the time is known of groups whose jobs have equal parts of it.

    As few pairs as may be: of two groups, their jobs are laid side by side; of one, the two halves, and the last three
    jobs of an odd number all with each other.

    Parameters
    ----------
    member : group of every job.
    groups : two groups, and a type of device, of every column of the program.
    together : time of both, of all jobs of the groups; of one group with itself, the time of all of its jobs.

    Returns
    -------
    First job, second job, type of device and fraction of every pair.
    """
    none = np.zeros(0, np.int64)
    members = np.split(np.argsort(member, kind="stable"), np.cumsum(np.bincount(member))[:-1])
    found: list[tuple[Ints, Ints, Ints, Floats]] = [(none, none, none, np.zeros(0))]
    used = np.nonzero(together > _NOTHING)[0]
    columns = (part[used].tolist() for part in (*groups, together))
    for a, b, kind, total in zip(*columns, strict=True):
        first, second, share = _within(members[a]) if a == b else _between(members[a], members[b])
        found.append((first, second, np.full(len(first), kind), share * total))
    first, second, types, fraction = (np.concatenate(parts) for parts in zip(*found, strict=True))
    return first, second, types, fraction


def _between(jobs: Ints, others: Ints) -> tuple[Ints, Ints, Floats]:
    size = len(jobs) * len(others)
    cuts = np.union1d(np.arange(0, size + 1, len(others)), np.arange(0, size + 1, len(jobs)))
    starts = cuts[:-1]
    return jobs[starts // len(others)], others[starts // len(jobs)], np.diff(cuts) / size


def _within(jobs: Ints) -> tuple[Ints, Ints, Floats]:
    size = len(jobs)
    half = size // 2 if size % 2 == 0 else (size - 3) // 2
    first, second, share = jobs[:half], jobs[half : 2 * half], np.full(half, 1.0 / size)
    if size % 2:
        x, y, z = jobs[-3:].tolist()
        first, second = np.append(first, (x, y, x)), np.append(second, (y, z, z))
        share = np.append(share, np.full(3, 0.5 / size))
    return first, second, share
