"""What a policy is: from a snapshot of the cluster and its jobs to targets, without any effect.

The same policy object decides in simulation and on every engine. It knows neither: it sees a `Snapshot`, says in
`Targets` what should run, and leaves it to the mechanism (events or rounds) and to the placement to bring that about.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from trainyard.fleet.books import Books
from trainyard.fleet.site import FleetError, Site
from trainyard.fleet.workload.job import Grant, Job

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

Need = Literal["length", "speed", "deadline"]
"""What a policy may have to know beside what every cluster knows: how much work is left; how fast jobs run on what; when
they should end."""


@dataclass(frozen=True, eq=False)
class Snapshot:
    """The jobs that a policy decides on, at one moment.

    Jobs are numbered from 0 in the order of their arrival; every column is by that number. A policy that never takes
    devices away sees only the jobs that wait.

    Attributes
    ----------
    now_s : the moment.
    site : the cluster.
    free : devices that nobody has, by node.
    needs : what the policy declared; asking for anything else is an error.
    """

    now_s: float
    site: Site
    free: Ints
    needs: frozenset[Need]
    rows: Ints
    _books: Books

    @property
    def num_jobs(self) -> int:
        return len(self.rows)

    @cached_property
    def jobs(self) -> tuple[Job, ...]:
        """The jobs as they were submitted."""
        return tuple(self._books.jobs[row] for row in self.rows)  # type: ignore[misc]

    @cached_property
    def grants(self) -> tuple[Grant | None, ...]:
        """What every job has."""
        return tuple(self._books.grants[row] for row in self.rows)

    @cached_property
    def arrival_s(self) -> Floats:
        return self._books.arrival_s[self.rows]

    @cached_property
    def num_devices(self) -> Ints:
        """Devices that every job asks for."""
        return self._books.num_devices[self.rows]

    @cached_property
    def held(self) -> Ints:
        """Devices that every job has."""
        return self._books.held[self.rows]

    @cached_property
    def weight(self) -> Floats:
        return self._books.weight[self.rows]

    @cached_property
    def is_running(self) -> Bools:
        return self.held > 0

    @cached_property
    def attained_s(self) -> Floats:
        """Time for which every job had devices."""
        return self._books.attained_s[self.rows] + self._stint_s

    @cached_property
    def attained_device_s(self) -> Floats:
        """That, times their number: the attained service of Tiresias."""
        return self._books.attained_device_s[self.rows] + self._stint_s * self.held

    @cached_property
    def _stint_s(self) -> Floats:
        return np.where(self.is_running, self.now_s - self._books.granted_s[self.rows], 0.0)

    @cached_property
    def waiting_s(self) -> Floats:
        """Time for which every job has waited without a break; 0 for those that run."""
        return np.where(self.is_running, 0.0, self.now_s - self._books.waiting_since_s[self.rows])

    @cached_property
    def was_started(self) -> Bools:
        return ~np.isnan(self._books.first_start_s[self.rows])

    @cached_property
    def left(self) -> Floats:
        """Work left, in the unit of each job's profile; needs "length"."""
        self._require("length")
        books, rows = self._books, self.rows
        done = np.maximum(0.0, self.now_s - books.since_s[rows]) * books.rate[rows]
        return np.maximum(0.0, books.left[rows] - done)

    @cached_property
    def deadline_s(self) -> Floats:
        """Deadlines, infinite for jobs without one; needs "deadline"."""
        self._require("deadline")
        return np.array([np.inf if j.deadline_s is None else j.deadline_s for j in self.jobs])

    def _require(self, need: Need) -> None:
        if need not in self.needs:
            raise FleetError(
                f"a policy that asks for {need!r} must declare it in `needs`; this one has {set(self.needs)}"
            )


@dataclass(frozen=True, eq=False)
class Targets:
    """What should run. Everything else waits or loses its devices.

    Attributes
    ----------
    order : numbers (in the snapshot) of the jobs that may run, most urgent first.
    num_devices : of each of them; by default what it asks for.
    device_type : index into ``site.device_types`` of each; -1, the default, is any one type.
    devices : the very devices of each, where the policy places for itself.
    fraction : of the time that each should run; only rounds take any but 1.
    share : of its devices that each gets, where the policy places for itself; others may have the rest.
    batch_size, cpus, memory_bytes : of each; 0 is the job's own.
    backfill : whether a job may run before one that is more urgent and does not fit.
    ask_again_s : when the policy wants to decide next, if nothing happens before.
    reasons : why a job waits, by its number, where there is more to say than that others are more urgent.
    refused : jobs that will never run, and why.
    """

    order: Ints
    num_devices: Ints | None = None
    device_type: Ints | None = None
    devices: Sequence[tuple[int, ...]] | None = None
    fraction: Floats | None = None
    share: Floats | None = None
    batch_size: Ints | None = None
    cpus: Floats | None = None
    memory_bytes: Floats | None = None
    backfill: bool = True
    ask_again_s: float = float("inf")
    reasons: Mapping[int, str] = field(default_factory=dict)
    refused: Mapping[int, str] = field(default_factory=dict)


class Policy(Protocol):
    """A scheduling policy.

    Attributes
    ----------
    needs : what it has to know.
    preempts : whether it takes devices away from running jobs.
    """

    @property
    def needs(self) -> frozenset[Need]: ...

    @property
    def preempts(self) -> bool: ...

    def start(self, site: Site) -> Any:
        """The state before the first decision; immutable, like all states."""
        ...

    def decide(self, snapshot: Snapshot, state: Any) -> tuple[Targets, Any]:
        """What should run now, and the state for the next decision."""
        ...


@dataclass(frozen=True)
class Priority:
    """Jobs in the order of one number, smallest first; of equal ones the first to arrive.

    Attributes
    ----------
    key : the number of every job.
    backfill : whether a job may run before a more urgent one that does not fit.
    """

    key: Callable[[Snapshot], Floats]
    needs: frozenset[Need] = frozenset()
    preempts: bool = False
    backfill: bool = True

    def start(self, site: Site) -> None:
        """Nothing is remembered."""

    def decide(self, snapshot: Snapshot, state: None) -> tuple[Targets, None]:
        """All jobs, in order."""
        return Targets(np.argsort(self.key(snapshot), kind="stable"), backfill=self.backfill), None
