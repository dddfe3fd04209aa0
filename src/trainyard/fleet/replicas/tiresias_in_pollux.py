"""Tiresias as in the simulator of the authors of Pollux, who compare with it.

Queues by attained devices times time, as in `trainyard.fleet.policies.tiresias`. But within a queue the job goes first
that came into it first, also before those that run, where Tiresias goes by when jobs were started; and nothing is said of
placement.

Qiao et al., "Pollux: Co-adaptive Cluster Scheduling for Goodput-Optimized Deep Learning", OSDI 2021; petuum/adaptdl,
branch osdi21-artifact, ``simulator/simulator.py``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from trainyard.fleet.allocation import Allocation, Queue
from trainyard.fleet.snapshot import Floats, Ints, Need, Snapshot
from trainyard.fleet.traits import ORDERED, Traits
from trainyard.hardware.cluster import Cluster

_NEAR_S = 1e-4
"""Service is a sum of floats: a job this near to a threshold (device-seconds) has reached it."""


class _Queued(NamedTuple):
    """Serial numbers of jobs, the queue of each, from 0, and when it came into that."""

    serial: Ints
    queue: Ints
    since_s: Floats


@dataclass(frozen=True)
class TiresiasInPollux:
    """The policy; for rounds of ``round_s``.

    Attributes
    ----------
    thresholds : between queues, ascending, device-seconds.
    round_s : time between two decisions.
    """

    thresholds: tuple[float, ...]
    round_s: float = 60.0
    needs: frozenset[Need] = field(default=frozenset(), init=False)
    preempts: bool = field(default=True, init=False)

    @property
    def traits(self) -> Traits:
        """Traits of a policy that only orders jobs."""
        return Traits(round_s=self.round_s, supports=ORDERED)

    def start(self, cluster: Cluster) -> _Queued:
        """Nobody is queued."""
        nobody = np.zeros(0, np.int64)
        return _Queued(nobody, nobody, np.zeros(0))

    def decide(self, snapshot: Snapshot, state: _Queued) -> tuple[Allocation, _Queued]:
        """All jobs, in the order of their queues."""
        reached = snapshot.attained_device_s + _NEAR_S
        queue = np.searchsorted(np.array(self.thresholds), reached, side="right")
        since_s = np.full(snapshot.num_jobs, snapshot.now_s)
        _, own, old = np.intersect1d(snapshot.serial, state.serial, assume_unique=True, return_indices=True)
        stays = queue[own] == state.queue[old]
        since_s[own[stays]] = state.since_s[old[stays]]
        order = np.lexsort((since_s, queue))
        return Allocation(Queue(order), stands=True), _Queued(snapshot.serial, queue, since_s)
