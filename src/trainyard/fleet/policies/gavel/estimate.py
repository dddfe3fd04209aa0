"""Gavel's estimator: how fast jobs are beside others, where only some of that was measured.

The first kinds of jobs that come are *references*: all of them are measured beside each other. Of a kind that comes
later, only some speeds beside references are measured. The others are completed from the references' (matrix completion),
and the reference with the most similar row stands for the kind from then on, beside others that are treated likewise.
Once two jobs run together, it is known how fast such two are; until then, what they get is decided anew every round.

References
----------
D. Narayanan et al., "Heterogeneity-Aware Cluster Scheduling Policies for Deep Learning Workloads", OSDI 2020, section 6.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from trainyard.fleet.known import KnownJob
from trainyard.fleet.policies.gavel.pairs import gaining, kinds_of
from trainyard.fleet.policies.gavel.problem import Pairs
from trainyard.fleet.snapshot import Snapshot

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]

_MOST_REFERENCES = 16
_PROFILED = 0.5
"""Share of its speeds beside references that are measured of a kind."""
_RANK = 10
_PENALTY = 1e-2
"""Penalty of the factors in the least squares that complete a row."""


@dataclass(frozen=True, eq=False)
class References:
    """Jobs of one size of gang that are measured beside each other.

    Attributes
    ----------
    kinds, jobs : of each.
    runs : (jobs, types) whether each may run on a type.
    part : (jobs, others, types) of its speed alone that each has beside another one; 0 where they do not run.
    """

    kinds: tuple[Hashable, ...]
    jobs: tuple[KnownJob, ...]
    runs: Bools
    part: Floats

    @classmethod
    def none(cls, num_types: int) -> References:
        """Nobody has come yet."""
        return cls((), (), np.zeros((0, num_types), np.bool_), np.zeros((0, 0, num_types)))

    def with_one(self, kind: Hashable, job: KnownJob, runs: Bools, snapshot: Snapshot) -> References:
        """The same with another one, which is measured beside all."""
        jobs, count = (*self.jobs, job), len(self.jobs)
        both = np.vstack((self.runs, runs))
        part = np.zeros((count + 1, count + 1, self.part.shape[2]))
        part[:count, :count] = self.part
        for number, other in enumerate(jobs):
            part[count, number] = _beside(job, other, runs & both[number], snapshot)
            part[number, count] = _beside(other, job, runs & both[number], snapshot)
        return References((*self.kinds, kind), jobs, both, part)

    def nearest(self, job: KnownJob, runs: Bools, snapshot: Snapshot, rng: np.random.Generator) -> int:
        """Find the reference that stands for a job, from the measured speeds of the job beside some references."""
        pairs = zip(self.jobs, self.runs, strict=True)
        row = np.array([_beside(job, other, runs & its, snapshot) for other, its in pairs])
        rows = self.part.reshape(len(self.jobs), -1)
        measured = rng.random(row.size) < _PROFILED
        if not (row.ravel() * measured).any():
            return int(rng.integers(len(self.jobs)))
        return most_similar(rows, completed(rows, row.ravel(), measured))


@dataclass(frozen=True, eq=False)
class Estimated:
    """Speeds of kinds of jobs beside others, as far as they are estimated or measured.

    Attributes
    ----------
    stands : of every kind of the last decision, which reference of its size of gang stands for it.
    references : by size of gang.
    ran : what part of its speed alone a kind had beside another on a type of device, where two such have run.
    """

    stands: Mapping[Hashable, int] = field(default_factory=lambda: MappingProxyType({}))
    references: Mapping[int, References] = field(default_factory=lambda: MappingProxyType({}))
    ran: Mapping[tuple[Hashable, Hashable, int], float] = field(default_factory=lambda: MappingProxyType({}))


def estimated_pairs(snapshot: Snapshot, speed: Floats, before: Estimated | None) -> tuple[Estimated, Pairs]:
    """Return the same as `seen_pairs`, from references and measured speeds of other pairs.

    Parameters
    ----------
    speed : of every job on every type, alone.
    """
    before = before or Estimated()
    like, example = kinds_of(snapshot)
    references, stands = dict(before.references), dict[Hashable, int]()
    for kind, number in example.items():
        job, size = snapshot.job(number), int(snapshot.num_devices[number])
        known = references.get(size) or References.none(speed.shape[1])
        if kind in before.stands:
            stands[kind] = before.stands[kind]
        elif kind in known.kinds:
            stands[kind] = known.kinds.index(kind)
        elif len(known.jobs) < _MOST_REFERENCES:
            references[size] = known.with_one(kind, job, speed[number] > 0, snapshot)
            stands[kind] = len(known.jobs)
        else:
            rng = np.random.default_rng(int(snapshot.serial[number]))
            stands[kind] = known.nearest(job, speed[number] > 0, snapshot, rng)
    numbers = list(example.values())
    sizes, place = snapshot.num_devices[numbers], np.array([stands[kind] for kind in example], np.int64)
    part = np.zeros((len(numbers), len(numbers), speed.shape[1]))
    is_sure = np.zeros(part.shape, np.bool_)
    for size, known in references.items():
        own = np.nonzero(sizes == size)[0]
        part[np.ix_(own, own)] = known.part[np.ix_(place[own], place[own])]
        themselves = np.isin(own, [index for index, kind in enumerate(example) if kind in known.kinds])
        is_sure[np.ix_(own, own)] = (themselves[:, None] & themselves)[:, :, None]
    ran = {**before.ran, **_running(snapshot, like, tuple(example), speed)}
    index = {kind: place for place, kind in enumerate(example)}
    for (kind, other, device_type), measured in ran.items():
        if kind in index and other in index:
            where = index[kind], index[other], device_type
            part[where], is_sure[where] = measured, True
    runs = speed[numbers] > 0
    part *= runs[:, None] & runs[None]
    estimated = Estimated(MappingProxyType(stands), MappingProxyType(references), MappingProxyType(ran))
    return estimated, Pairs(like, gaining(part), is_sure)


def _running(
    snapshot: Snapshot, like: Ints, kinds: tuple[Hashable, ...], speed: Floats
) -> dict[tuple[Hashable, Hashable, int], float]:
    """Return the speeds that pairs of running jobs have measured."""
    number = {job.name: i for i, job in enumerate(snapshot.jobs)}
    found, cluster = dict[tuple[Hashable, Hashable, int], float](), snapshot.cluster
    for i, grant in enumerate(snapshot.grants):
        for j in (number[name] for name in (grant.partners if grant else ()) if name in number):
            assert grant is not None
            device_type = int(cluster.type_of_node[cluster.node_of[grant.devices[0]]])
            together = snapshot.gang_speed(snapshot.job(i), device_type, snapshot.job(j))
            found[kinds[like[i]], kinds[like[j]], device_type] = together / speed[i, device_type]
    return found


def completed(rows: Floats, row: Floats, measured: Bools) -> Floats:
    """A row some of whose entries are measured, with the others as they follow from complete rows.

    It is a sum of the directions in which those differ most, with the weights that fit what was measured (least squares
    with a penalty, as of the factors of a matrix that is completed).

    Parameters
    ----------
    rows : (references, columns), complete.
    row : (columns); what is not measured is not looked at.
    """
    _, strength, directions = np.linalg.svd(rows, full_matrices=False)
    factors = np.sqrt(strength[:_RANK, None]) * directions[:_RANK]
    own = factors[:, measured]
    weights = np.linalg.solve(own @ own.T + _PENALTY * np.eye(len(own)), own @ row[measured])
    found: Floats = np.where(measured, row, np.clip(weights @ factors, 0.0, 1.0))
    return found


def most_similar(rows: Floats, row: Floats) -> int:
    """The row at the smallest angle to another one."""
    lengths = np.linalg.norm(rows, axis=1)
    return int(np.argmax(rows @ row / np.where(lengths > 0, lengths, np.inf)))


def _beside(job: KnownJob, other: KnownJob, runs: Bools, snapshot: Snapshot) -> Floats:
    """Part of its speed alone that a job has beside another, by type; 0 where one of them does not run."""
    found = np.zeros(len(runs))
    for kind in np.nonzero(runs)[0].tolist():
        found[kind] = snapshot.gang_speed(job, kind, other) / snapshot.gang_speed(job, kind)
    return found
