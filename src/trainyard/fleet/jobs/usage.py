"""Owners of jobs, and their usage: device time that decays with a half-life."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from trainyard.fleet.workload.job import JobRequest

__all__ = ["Owner", "Owners", "Usage"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


_NO_GROUPS: tuple[Sequence[str], Ints] = (), np.zeros(0, np.int64)


class Owner(NamedTuple):
    """The account and the user of a job; either may be empty."""

    account: str
    user: str


class JobRows(Protocol):
    """Columns of a `JobTable` that usage reads."""

    held: Ints
    owners: Any

    @property
    def active(self) -> Ints: ...

    def job(self, row: int) -> JobRequest: ...

    def cached(self, name: str, rows: Ints, find: Callable[[int], float]) -> Floats: ...


class Owners:
    """Owners of all present and past jobs of a table, numbered in the order in which they were first asked for.

    Attributes
    ----------
    all : the owners by their number.
    """

    def __init__(self, table: JobRows) -> None:
        self._table = table
        self.all: list[Owner] = []
        self._number: dict[Owner, int] = {}
        self._groups: dict[str, tuple[Sequence[str], Ints]] = {}

    def number(self, owner: Owner) -> int:
        """Return the number of an owner."""
        if owner not in self._number:
            self._number[owner] = len(self.all)
            self.all.append(owner)
        return self._number[owner]

    def of(self, rows: Ints) -> Ints:
        """Return the numbers of the owners of jobs."""
        return self._table.cached("owner", rows, self._find).astype(np.int64)

    def _find(self, row: int) -> int:
        job = self._table.job(row)
        return self.number(Owner(job.account, job.user))

    def groups(self, by: str) -> tuple[Sequence[str], Ints]:
        """Return the names of all users or accounts, and for each owner the index of its name.

        Parameters
        ----------
        by : "user" or "account".
        """
        if len(self._groups.get(by, _NO_GROUPS)[1]) != len(self.all):
            names = [getattr(owner, by) for owner in self.all]
            index = {name: place for place, name in enumerate(dict.fromkeys(names))}
            self._groups[by] = tuple(index), np.array([index[name] for name in names], np.int64)
        return self._groups.get(by, _NO_GROUPS)


class Usage:
    """Device time of every owner, which is halved in every half-life.

    Let h be the half-life. A device that a job had from a to b counts at the time t as
    h / ln 2 * (2^(-(t - b)/h) - 2^(-(t - a)/h)) seconds: the integral of the decayed moments. The value is exact at any
    time.

    Parameters
    ----------
    half_life_s : seconds; infinite if usage always counts in full.

    Attributes
    ----------
    at_s : moment until which device time is counted.
    """

    def __init__(self, table: JobRows, half_life_s: float) -> None:
        self._table, self.half_life_s = table, half_life_s
        self.at_s = 0.0
        self._device_s = np.zeros(0)
        self._kept_until_s = math.inf

    @property
    def device_s(self) -> Floats:
        """Decayed device time of every owner at ``at_s``, seconds, by the owner's number."""
        self._grow()
        return self._device_s.copy()

    def _grow(self) -> None:
        if (more := len(self._table.owners.all) - len(self._device_s)) > 0:
            self._device_s = np.append(self._device_s, np.zeros(more))

    def advance(self, now_s: float) -> None:
        """Count device time until now. Call it before any job gets or loses devices."""
        if now_s <= self.at_s:
            return
        rows = self._table.active
        owners = self._table.owners.of(rows)
        self._grow()
        kept, gained_s = self._since(now_s - self.at_s)
        held = np.bincount(owners, self._table.held[rows], len(self._device_s))
        self._device_s = self._device_s * kept + held * gained_s
        self.at_s = now_s

    def _since(self, past_s: float) -> tuple[float, float]:
        """Return the factor by which earlier usage decays in a time, and the decayed seconds of a device held since."""
        if self.half_life_s == math.inf:
            return 1.0, past_s
        rate = math.log(2.0) / self.half_life_s
        return math.exp(-rate * past_s), -math.expm1(-rate * past_s) / rate

    def text(self) -> str:
        """Return the usage as text, for `restore`."""
        owners, device_s = self._table.owners.all, self.device_s.tolist()
        rows = [[*owner, used_s] for owner, used_s in zip(owners, device_s, strict=True)]
        return json.dumps({"at_s": self.at_s, "device_s": rows})

    def restore(self, text: str, now_s: float) -> None:
        """Continue the usage of an earlier scheduler; `resume` then names the jobs that still run."""
        kept = json.loads(text)
        numbers = [self._table.owners.number(Owner(account, user)) for account, user, _ in kept["device_s"]]
        self._grow()
        self._device_s[numbers] = [used_s for *_, used_s in kept["device_s"]]
        self._kept_until_s = self.at_s = min(now_s, float(kept["at_s"]))
        self.advance(now_s)

    def resume(self, row: int, num_devices: int, now_s: float) -> None:
        """Count the devices of a job for the time without a scheduler."""
        if self._kept_until_s < now_s:
            self.count_earlier(row, num_devices, now_s - self._kept_until_s)

    def count_earlier(self, row: int, num_devices: int, past_s: float) -> None:
        """Count devices that a job had for a time until `at_s`, unknown to this scheduler."""
        owner = int(self._table.owners.of(np.array([row]))[0])
        self._grow()
        self._device_s[owner] += num_devices * self._since(past_s)[1]
