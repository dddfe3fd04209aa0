"""What a policy is: from a snapshot of the cluster and its jobs to targets, without any effect.

The same policy object decides in simulation and on every backend. It knows neither: it sees a `Snapshot`, says in
`Targets` what should run, and leaves it to the mechanism (events or rounds) and to the placement to bring that about.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np

from trainyard.fleet.compiled_policy import CompiledPolicy, in_known_order, in_order
from trainyard.fleet.site import Site
from trainyard.fleet.snapshot import Floats, Ints, Need, Snapshot
from trainyard.fleet.traits import ORDERED, Wish


@dataclass(frozen=True)
class Reasons(Mapping[int, str]):
    """Reasons in words by number of the job, put together only when somebody asks.

    Attributes
    ----------
    numbers : of the jobs that there is a reason for, ascending.
    say : the reason of one of them.
    """

    numbers: Ints
    say: Callable[[int], str]

    def __getitem__(self, number: int) -> str:
        if number not in self.numbers:
            raise KeyError(number)
        return self.say(number)

    def __iter__(self) -> Iterator[int]:
        return iter(self.numbers.tolist())

    def __len__(self) -> int:
        return len(self.numbers)


_NOTHING: Mapping[int, str] = MappingProxyType({})


class Targets(NamedTuple):
    """What should run. Everything else waits or loses its devices.

    There is one for every decision, and a frozen dataclass of so many fields would take six times as long to make.

    Attributes
    ----------
    order : numbers (in the snapshot) of the jobs that may run, most urgent first.
    num_devices : of each of them; by default what it asks for.
    device_type : index into ``site.device_types`` of each; -1, the default, is any one type.
    devices : the very devices of each, where the policy places for itself.
    consolidate : 1 for each that must lie on as few nodes as it can, 0 for one that may lie anywhere, -1, the default,
        for one of which the placement of the run decides.
    fraction : of the time that each entry should have its device type. A job may have an entry for every type, of which
        at most one runs at a time; only rounds take fractions.
    partner : number of the job that has the same devices at the same time as each entry of fractions; -1 is none.
    until_s : when each gives its devices back, unless a decision lets it have them for longer: a lease. The policy is
        asked when one ends; if it takes nothing away from jobs that run, that job waits again. By default never.
    done_s : when the policy expects each to be done.
    share : of its devices that each gets, where the policy places for itself; others may have the rest.
    batch_size, cpus, memory_bytes : of each; 0 is the job's own.
    backfill : whether a job may run before one that is more urgent and does not fit.
    one_queue : without backfill, whether a job that finds no place holds up all that come after it; by default those that
        could have some of the same nodes.
    leftovers : whether devices that no fraction claims in a round go to jobs whose fraction is 0.
    ask_again_s : when the policy wants to decide next, if nothing happens before.
    stands : whether the policy has nothing to change for as long as every job has devices.
    blocks : whether, while one of these jobs finds no place, none that comes later is to start either.
    reasons : why a job waits, by its number, where there is more to say than what it asks for, what is free, and its
        place among those that wait.
    refused : jobs that will never run, and why.
    """

    order: Ints
    num_devices: Ints | None = None
    device_type: Ints | None = None
    devices: Sequence[tuple[int, ...]] | None = None
    consolidate: Ints | None = None
    fraction: Floats | None = None
    partner: Ints | None = None
    until_s: Floats | None = None
    done_s: Floats | None = None
    share: Floats | None = None
    batch_size: Ints | None = None
    cpus: Floats | None = None
    memory_bytes: Floats | None = None
    backfill: bool = True
    one_queue: bool = False
    leftovers: bool = True
    ask_again_s: float = float("inf")
    stands: bool = False
    blocks: bool = False
    reasons: Mapping[int, str] = _NOTHING
    refused: Mapping[int, str] = _NOTHING


class Policy(Protocol):
    """A scheduling policy."""

    @property
    def needs(self) -> frozenset[Need]:
        """What it has to know."""
        ...

    @property
    def preempts(self) -> bool:
        """Whether it takes devices away from running jobs."""
        ...

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
    backfill, one_queue : as in `Targets`.
    steady : of equal jobs, keep the order that they had at the last decision.
    in_turn : whether a job that comes later is never more urgent.
    quantum_s : ask again after this time, for a key that changes while jobs run.
    compiled_key : the same number of one job, one of those of `fleet/compiled_policy.py`, or a compiled function.
    """

    key: Callable[[Snapshot], Floats]
    needs: frozenset[Need] = frozenset()
    preempts: bool = False
    backfill: bool = True
    one_queue: bool = False
    steady: bool = False
    in_turn: bool = False
    quantum_s: float = float("inf")
    compiled_key: int | Callable[..., Any] | None = None
    heeds: frozenset[Wish] = field(default=ORDERED, init=False)

    @property
    def compiled(self) -> CompiledPolicy | None:
        """The same in compiled code."""
        if self.compiled_key is None or self.steady:
            return None
        rules, decide = (
            (self.quantum_s, self.compiled_key),
            in_order if callable(self.compiled_key) else in_known_order,
        )
        return CompiledPolicy(decide, rules, self.backfill, one_queue=self.one_queue, blocks=self._blocks)

    @property
    def holds_up(self) -> Literal["nobody", "same nodes", "all"]:
        """Whom a job holds up that finds no place."""
        if self.backfill:
            return "nobody"
        return "all" if self.one_queue else "same nodes"

    @property
    def _blocks(self) -> bool:
        return self.in_turn and not self.backfill

    def start(self, site: Site) -> tuple[Ints, Ints]:
        """Serial numbers of the jobs of the last decision, and the place of each in its order; nobody was there."""
        return np.zeros(0, np.int64), np.zeros(0, np.int64)

    def decide(self, snapshot: Snapshot, state: tuple[Ints, Ints]) -> tuple[Targets, tuple[Ints, Ints]]:
        """All jobs, in order."""
        key = self.key(snapshot)
        if self.steady:
            serials, places = state
            found = np.searchsorted(serials, snapshot.serial)
            order = np.lexsort((np.append(places, len(places))[found], key))
            state = snapshot.serial, order.argsort()
        else:
            order = key.argsort(kind="stable")
        again_s = float("inf")  # where nobody waits, another order changes nothing
        if self.quantum_s < again_s and np.count_nonzero(snapshot.held) < snapshot.num_jobs:
            again_s = snapshot.now_s + self.quantum_s
        targets = Targets(
            order,
            backfill=self.backfill,
            one_queue=self.one_queue,
            ask_again_s=again_s,
            stands=True,
            blocks=self._blocks,
        )
        return targets, state
