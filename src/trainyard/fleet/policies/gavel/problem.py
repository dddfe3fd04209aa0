"""Input and result of a decision of Gavel's policies, in arrays (section 3.1 of the paper)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from trainyard.compiling import only_compiled
from trainyard.hardware.prices import Prices

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Fractions:
    """Fractions of time that combinations of jobs should have each type of device: X in the paper.

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
class Pairs:
    """Speeds of jobs beside others.

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
        """Return the pairs; a pair has no part on types where one of its jobs cannot run now.

        Parameters
        ----------
        able : (jobs, types) whether each can run on a type now.
        """
        runs = np.zeros((len(self.part), able.shape[1]), np.bool_)
        runs[self.like] = able
        return replace(self, part=self.part * (runs[:, None] & runs))

    def of(self, jobs: Ints) -> Pairs:
        """Return the pairs of some of the jobs."""
        return replace(self, like=self.like[jobs])

    def are_sure(self, found: Fractions) -> bool:
        """Whether all pairs that get time are measured."""
        if self.is_sure is None:
            return True
        return bool(self.is_sure[self.like[found.first], self.like[found.second], found.device_type].all())


@dataclass(frozen=True, eq=False)
class Problem:
    """Jobs and a cluster; rows are jobs in the order of their arrival, columns types of device.

    Attributes
    ----------
    throughputs : work per second of every job on every type, 0 where it cannot run, as on one without devices (T).
    scale_factors : devices of every job.
    devices_of_type : devices of every type (num_workers).
    weight : of every job.
    serial : of every job; ascending, its own for life.
    device_types : names of the types.
    able : whether every job can run on every type, also where ``throughputs`` takes all types for alike.
    left : work left, where the policy needs it (num_steps).
    age_s, time_left_s : since arrival, and to the deadline, infinite without one.
    entity : name of the virtual cluster of every job.
    pairs : how fast jobs are beside others, where they may share devices.
    waiting : serial numbers of jobs that cannot run now, and will.
    prices : prices of devices in the cluster's file.
    in_highs : whether HiGHS solves all programs, also those that prices solve.
    """

    throughputs: Floats
    scale_factors: Floats
    devices_of_type: Ints
    weight: Floats
    serial: Ints
    device_types: tuple[str, ...]
    able: Bools
    left: Floats = field(default_factory=lambda: np.zeros(0))
    age_s: Floats = field(default_factory=lambda: np.zeros(0))
    time_left_s: Floats = field(default_factory=lambda: np.zeros(0))
    entity: tuple[str, ...] = ()
    pairs: Pairs | None = None
    waiting: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    prices: Prices = ()
    in_highs: bool = False

    def __post_init__(self) -> None:
        assert not self.throughputs[:, self.devices_of_type == 0].any(), "nothing runs on no devices"

    @property
    def num_jobs(self) -> int:
        return len(self.throughputs)

    @property
    def by_prices(self) -> bool:
        """Whether prices of the types solve programs: that takes that only devices couple jobs (`solver.prices`)."""
        return self.pairs is None and not self.in_highs

    @property
    def equal_throughput(self) -> Floats:
        """Speed of every job that has equal shares of every device: throughput(m, X^equal) of section 4.1."""
        found: Floats = self.throughputs @ (self.devices_of_type / self.devices_of_type.sum())
        return found

    @property
    def relative_throughputs(self) -> Floats:
        """Throughput of each job relative to that with an equal share; it decides between equally good fractions.

        Otherwise jobs would share devices though others are idle: for the job that has least that is as good.
        """
        found: Floats = self.throughputs / self.equal_throughput[:, None]
        return found

    @property
    def scaled_throughputs(self) -> Floats:
        """Throughput in parts of that with equal shares, times devices: what max-min fairness looks at."""
        found: Floats = self.throughputs * (self.scale_factors / self.equal_throughput)[:, None]
        return found

    @property
    def isolated_throughput(self) -> Floats:
        """Speed of every job on its own part of the cluster, 1 of n: throughput(m, X^isolated) of section 4.2."""
        part = self.devices_of_type / self.num_jobs / self.scale_factors[:, None]
        found: Floats = (self.throughputs * part).sum(axis=1) / np.maximum(1.0, part.sum(axis=1))
        return found

    @property
    def fastest_throughput(self) -> Floats:
        """Speed of every job where it is fastest."""
        found: Floats = self.throughputs.max(axis=1)
        if self.pairs is not None:
            # Some were measured to be faster beside others than alone.
            most = np.maximum(1.0, self.pairs.part.max(axis=1))[self.pairs.like]
            found = (self.throughputs * most).max(axis=1)
        return found

    def effective_throughput(self, fractions: Fractions) -> Floats:
        """Effective throughput of every job: throughput(m, X) of section 3.1."""
        found: Floats = (self.throughputs * fractions.alone).sum(axis=1) + self.beside(
            self.throughputs, fractions
        )
        return found

    def beside(self, rate: Floats, fractions: Fractions) -> Floats:
        """Return the part of its rate that each job has beside others.

        Parameters
        ----------
        rate : of every job on every type, alone.
        """
        found = np.zeros(self.num_jobs)
        if self.pairs is not None:
            like, kind = self.pairs.like, fractions.device_type
            for own, other in ((fractions.first, fractions.second), (fractions.second, fractions.first)):
                part = self.pairs.part[like[own], like[other], kind]
                np.add.at(found, own, rate[own, kind] * part * fractions.together)
        return found


def alike(problem: Problem, *seen: Floats | Ints) -> tuple[Ints, Ints, Ints, Floats]:
    """Jobs with gangs of one size that are equal in all that is seen: what `grouped` finds, and what each group holds.

    Returns
    -------
    First job, group of every job, size of every group; and the part of every type that all of a group hold when they run
    there all the time.
    """
    first, member, count = grouped(np.column_stack((*seen, problem.scale_factors)))
    return (
        first,
        member,
        count,
        (count * problem.scale_factors[first])[:, None] / np.maximum(problem.devices_of_type, 1),
    )


@only_compiled
def grouped(rows):  # type: ignore[no-untyped-def]
    """Equal rows: the first row of every group, the group of every row, and how many rows it has."""
    size = len(rows)
    order, group = np.arange(size), -1
    for column in rows.T:
        order = order[np.argsort(column[order], kind="mergesort")]
    first, member, count = np.empty(size, np.int64), np.empty(size, np.int64), np.zeros(size, np.int64)
    for place in range(size):
        row = order[place]
        if place == 0 or (rows[row] != rows[order[place - 1]]).any():
            group += 1
            first[group] = row
        member[row] = group
        count[group] += 1
    return first[: group + 1], member, count[: group + 1]
