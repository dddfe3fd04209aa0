"""What a policy of Gavel knows when it decides, in arrays; and the shares that it starts from."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from trainyard.compiling import compiled
from trainyard.fleet.policies.gavel.pairs import Fractions, Pairs, dealt
from trainyard.fleet.policies.gavel.program import Optimum, alone, optimum, with_pairs

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Problem:
    """Jobs and a cluster; rows are jobs in the order of their arrival, columns types of device.

    Attributes
    ----------
    speed : work per second of every job's gang, 0 where it cannot run, as on a type without devices (T in the paper).
    gang : devices of every job (scale_factor).
    room : devices of every type (num_workers).
    weight : of every job.
    serial : of every job; ascending, its own for life.
    kinds : names of the types.
    able : whether every job can run on every type, also where ``speed`` takes all types for alike.
    left : work left, where the policy needs it (num_steps).
    age_s, time_left_s : since arrival, and to the deadline, infinite without one.
    entity : name of the virtual cluster of every job.
    pairs : how fast jobs are beside others, where they may share devices.
    waiting : serial numbers of jobs that cannot run now, and will.
    in_highs : whether HiGHS solves all programs, also those that prices solve.
    """

    speed: Floats
    gang: Floats
    room: Ints
    weight: Floats
    serial: Ints
    kinds: tuple[str, ...]
    able: Bools
    left: Floats = field(default_factory=lambda: np.zeros(0))
    age_s: Floats = field(default_factory=lambda: np.zeros(0))
    time_left_s: Floats = field(default_factory=lambda: np.zeros(0))
    entity: tuple[str, ...] = ()
    pairs: Pairs | None = None
    waiting: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    in_highs: bool = False

    def __post_init__(self) -> None:
        assert not self.speed[:, self.room == 0].any(), "nothing runs on no devices"

    @property
    def num_jobs(self) -> int:
        return len(self.speed)

    @property
    def by_prices(self) -> bool:
        """Whether programs are solved by prices of the types: that takes that only devices couple jobs (`burden`)."""
        return self.pairs is None and not self.in_highs

    @property
    def equal_speed(self) -> Floats:
        """Speed of every job that has equal shares of every device: throughput(m, X^equal) of section 4.1."""
        found: Floats = self.speed @ (self.room / self.room.sum())
        return found

    @property
    def spare(self) -> Floats:
        """What decides between fractions that are equally good: throughput, that in equal shares being 1 for every job.

        Else jobs would share devices though others are idle, since it is just as good for the job that has least.
        """
        found: Floats = self.speed / self.equal_speed[:, None]
        return found

    @property
    def isolated_speed(self) -> Floats:
        """Speed of every job on its own part of the cluster, 1 of n: throughput(m, X^isolated) of section 4.2."""
        part = self.room / self.num_jobs / self.gang[:, None]
        found: Floats = (self.speed * part).sum(axis=1) / np.maximum(1.0, part.sum(axis=1))
        return found

    @property
    def fastest(self) -> Floats:
        """Speed of every job where it is fastest."""
        found: Floats = self.speed.max(axis=1)
        if self.pairs is not None:
            # Some were measured to be faster beside others than alone.
            most = np.maximum(1.0, self.pairs.part.max(axis=1))[self.pairs.like]
            found = (self.speed * most).max(axis=1)
        return found

    def throughput(self, fractions: Fractions) -> Floats:
        """Effective throughput of every job: throughput(m, X) of section 3.1."""
        found: Floats = (self.speed * fractions.alone).sum(axis=1) + self.beside(self.speed, fractions)
        return found

    def beside(self, rate: Floats, fractions: Fractions) -> Floats:
        """What every job has of its rate beside others.

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


def solve(
    problem: Problem,
    rate: Floats,
    *,
    share: Floats | None = None,
    need: Floats | None = None,
    reward: Floats | None = None,
    cost: Floats | None = None,
    near: Optimum | None = None,
) -> tuple[Fractions, Optimum] | None:
    """Fractions that are best; None if no fractions meet all needs.

    Jobs that are equal in all that the program sees are one job in it that stands for them all, since an optimum in which
    they share alike always exists.

    Parameters
    ----------
    rate, reward : of every job on every type, alone; beside another one it has the part of both that it has of its speed.
    share, need : of every job; `optimum`.
    cost : of every job's devices on every type, taken off the reward once for all who share them.
    near : solution of a program that was much the same; it is looked at first.

    Returns
    -------
    The fractions, and the solution with ``price`` by job.
    """
    pairs, gang = problem.pairs, problem.gang
    gain = reward if reward is None or cost is None else reward - cost
    like = None if pairs is None else pairs.like.astype(float)
    seen = [v for v in (rate, gang, share, need, gain, like) if v is not None]
    first, member, count = grouped(np.column_stack(seen))
    columns = alone(rate[first] > 0, gang[first])
    by_itself = slice(0, len(columns.device_type))
    if pairs is not None:
        columns, *both = with_pairs(columns, gang[first], count, pairs.like[first], pairs.part)
    gained = None if reward is None else columns.of_columns(reward[first])
    if gained is not None and cost is not None:
        gained -= columns.of_devices(cost[first], gang[first])
    begin = np.arange(by_itself.stop)
    if near is not None and len(near.fraction) == len(columns.device_type):
        begin = np.union1d(begin, np.nonzero(near.fraction > 0)[0])
    found = optimum(
        columns,
        rate[first],
        problem.room,
        count=count.astype(float),
        share=share if share is None else share[first] * count,
        need=need if need is None else need[first] * count,
        reward=gained,
        begin=begin if need is None else None,
    )
    if found is None:
        return None
    solution = replace(found, price=found.price[member])
    fraction, jobs = np.zeros((len(first), len(problem.room))), columns.job[by_itself]
    fraction[jobs, columns.device_type[by_itself]] = found.fraction[by_itself] / count[jobs]
    if pairs is None:
        return Fractions.without_pairs(fraction[member]), solution
    groups = (both[0], both[1], columns.device_type[by_itself.stop :])
    return Fractions(fraction[member], *dealt(member, groups, found.fraction[by_itself.stop :])), solution


def alike(problem: Problem, *seen: Floats | Ints) -> tuple[Ints, Ints, Ints, Floats]:
    """Jobs with gangs of one size that are equal in all that is seen: what `grouped` finds, and what each group holds.

    Returns
    -------
    First job, group of every job, size of every group; and the part of every type that all of a group hold when they run
    there all the time.
    """
    first, member, count = grouped(np.column_stack((*seen, problem.gang)))
    return first, member, count, (count * problem.gang[first])[:, None] / np.maximum(problem.room, 1)


@compiled
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
