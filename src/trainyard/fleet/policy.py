"""The protocol of policies: from a snapshot of the cluster and its jobs to an allocation, without any effect.

The same policy object decides in simulation and on every backend, and knows neither. It reads a `Snapshot` and returns an
`Allocation`; the mechanism (events or rounds) and the placement carry it out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from trainyard.fleet.allocation import Allocation, Queue
from trainyard.fleet.compiled_policy import CompiledPolicy, in_known_order, in_order
from trainyard.fleet.snapshot import Floats, Ints, Need, Snapshot
from trainyard.fleet.traits import ORDERED, HoldsUp, Traits
from trainyard.hardware.cluster import Cluster


class Policy(Protocol):
    """A scheduling policy."""

    @property
    def needs(self) -> frozenset[Need]:
        """Needs of the policy: facts of jobs that it reads and not every cluster knows, see `Need`."""
        ...

    @property
    def preempts(self) -> bool:
        """Whether it takes devices away from jobs that run; if not, its snapshots have only jobs that wait."""
        ...

    def start(self, cluster: Cluster) -> Any:
        """The state before the first decision; immutable, like all states. The cluster is here with all its nodes."""
        ...

    def decide(self, snapshot: Snapshot, state: Any) -> tuple[Allocation, Any]:
        """Return the allocation from now on, and the state for the next decision."""
        ...


@dataclass(frozen=True)
class Priority:
    """Jobs in the order of one number, smallest first; of equal ones the first to arrive.

    Attributes
    ----------
    key : the number of every job.
    backfill, one_queue : as in `Queue`.
    steady : of equal jobs, keep the order that they had at the last decision.
    in_turn : whether a job that comes later is never more urgent.
    quantum_s : ask again after this time, for a key that changes while jobs run.
    named : as in `Traits`.
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
    named: tuple[tuple[str, str], ...] = ()
    compiled_key: int | Callable[..., Any] | None = None

    @property
    def traits(self) -> Traits:
        """Traits of a policy that only orders jobs, also in compiled code if it has a key for that."""
        holds_up: HoldsUp = "nobody" if self.backfill else "all" if self.one_queue else "same nodes"
        return Traits(holds_up=holds_up, named=self.named, supports=ORDERED, compiled=self._compiled)

    @property
    def _compiled(self) -> CompiledPolicy | None:
        if self.compiled_key is None or self.steady:
            return None
        rules, decide = (
            (self.quantum_s, self.compiled_key),
            in_order if callable(self.compiled_key) else in_known_order,
        )
        return CompiledPolicy(decide, rules, self.backfill, one_queue=self.one_queue, blocks=self._blocks)

    @property
    def _blocks(self) -> bool:
        return self.in_turn and not self.backfill

    def start(self, cluster: Cluster) -> tuple[Ints, Ints]:
        """Serial numbers of the jobs of the last decision, and the place of each in its order; nobody was there."""
        return np.zeros(0, np.int64), np.zeros(0, np.int64)

    def decide(self, snapshot: Snapshot, state: tuple[Ints, Ints]) -> tuple[Allocation, tuple[Ints, Ints]]:
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
        queue = Queue(order, backfill=self.backfill, one_queue=self.one_queue, blocks=self._blocks)
        return Allocation(queue, ask_again_s=again_s, stands=True), state
