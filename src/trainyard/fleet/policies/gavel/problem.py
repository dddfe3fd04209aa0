"""What a policy of Gavel knows when it decides, in arrays; and the shares that it starts from."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from trainyard.fleet.policies.gavel.program import Columns, Optimum, alone, optimum

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Problem:
    """Jobs and a cluster; rows are jobs in the order of their arrival, columns types of device.

    Attributes
    ----------
    speed : work per second of every job's gang, 0 where it cannot run (T in the paper).
    gang : devices of every job (scale_factor).
    room : devices of every type (num_workers).
    weight : of every job.
    serial : of every job; ascending, its own for life.
    kinds : names of the types.
    able : whether every job can run on every type, also where ``speed`` takes all types for alike.
    left : work left, where the policy needs it (num_steps).
    age_s, time_left_s : since arrival, and to the deadline, infinite without one.
    entity : name of the virtual cluster of every job.
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

    @property
    def num_jobs(self) -> int:
        return len(self.speed)

    @property
    def equal_speed(self) -> Floats:
        """Speed of every job that has equal shares of every device: throughput(m, X^equal) of section 4.1."""
        found: Floats = self.speed @ (self.room / self.room.sum())
        return found

    @property
    def isolated_speed(self) -> Floats:
        """Speed of every job on its own part of the cluster, 1 of n: throughput(m, X^isolated) of section 4.2."""
        part = self.room / self.num_jobs / self.gang[:, None]
        found: Floats = (self.speed * part).sum(axis=1) / np.maximum(1.0, part.sum(axis=1))
        return found


def solve(
    problem: Problem,
    rate: Floats,
    *,
    share: Floats | None = None,
    need: Floats | None = None,
    reward: Floats | None = None,
) -> tuple[Floats, Optimum] | None:
    """Fractions of every job on every type that are best; None if no fractions meet all needs.

    Jobs that are equal in all that the program sees are one job in it that stands for them all, since an optimum in which
    they share alike always exists.

    Parameters
    ----------
    rate, reward : of every job on every type.
    share, need : of every job; `optimum`.

    Returns
    -------
    The fractions, and the solution with ``price`` by job.
    """
    seen = np.column_stack([v for v in (rate, problem.gang, share, need, reward) if v is not None])
    first, member, count = grouped(seen)
    counts = count.astype(float)
    columns: Columns = alone(rate[first], problem.gang[first])
    found = optimum(
        columns,
        problem.room,
        count=counts,
        share=None if share is None else share[first] * counts,
        need=None if need is None else need[first] * counts,
        reward=None if reward is None else reward[first][columns.job, columns.device_type],
    )
    if found is None:
        return None
    fraction = np.zeros((len(first), len(problem.room)))
    fraction[columns.job, columns.device_type] = found.fraction / counts[columns.job]
    return fraction[member], Optimum(found.fraction, found.level, found.price[member])


def grouped(rows: Floats) -> tuple[Ints, Ints, Ints]:
    """Equal rows: the first row of every group, the group of every row, and how many rows it has."""
    order = np.lexsort(rows.T)
    fresh = np.ones(len(rows), np.bool_)
    fresh[1:] = (rows[order[1:]] != rows[order[:-1]]).any(axis=1)
    member = np.empty(len(rows), np.int64)
    member[order] = np.cumsum(fresh) - 1
    first = order[fresh]
    return first, member, np.bincount(member, minlength=len(first))
