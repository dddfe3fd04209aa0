"""Earliest deadline first, on as many devices as make a job faster.

Fidelity: exact.

References
----------
C. L. Liu, J. W. Layland. "Scheduling Algorithms for Multiprogramming in a Hard-Real-Time Environment", JACM 1973: the
order of deadlines. D. Gu et al., "ElasticFlow: An Elastic Serverless Training Platform for Distributed Deep Learning",
ASPLOS 2023, baselines of its evaluation: elastic jobs scale out as far as they can.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np

from trainyard.fleet.allocation import Allocation, Queue, Reasons
from trainyard.fleet.errors import require_one_type
from trainyard.fleet.scaling import Scaling, scaling
from trainyard.fleet.snapshot import Need, Snapshot
from trainyard.hardware.cluster import Cluster


@dataclass(frozen=True)
class EDF:
    """The policy."""

    needs: frozenset[Need] = field(default=frozenset({"speed", "deadline"}), init=False)
    preempts: bool = field(default=True, init=False)

    def start(self, cluster: Cluster) -> MappingProxyType[int, Scaling]:
        """No job is known.

        Raises
        ------
        FleetError
            If there are several types of devices.
        """
        require_one_type(cluster, "earliest deadline first")
        return MappingProxyType({})

    def scaling(self, snapshot: Snapshot, number: int) -> Scaling:
        """On how many devices a job may run: on those only that make it faster."""
        return scaling(snapshot, number, True)

    def decide(
        self, snapshot: Snapshot, state: MappingProxyType[int, Scaling]
    ) -> tuple[Allocation, MappingProxyType[int, Scaling]]:
        """Give each job, in the order of deadlines, the most devices that it can use of those left."""
        serial = snapshot.serial.tolist()
        known = {s: state.get(s) or self.scaling(snapshot, i) for i, s in enumerate(serial)}
        order = np.lexsort((snapshot.arrival_s, snapshot.deadline_s))
        free = snapshot.cluster.num_devices
        counts = np.zeros(len(order), np.int64)
        for place, i in enumerate(order.tolist()):
            counts[place] = max((n for n in known[serial[i]].num_devices if n <= free), default=0)
            free -= int(counts[place])
        reasons = Reasons(np.sort(order[counts == 0]), _why)
        # Who does not fit by number may have what is left over where one of the others finds no place.
        least = np.array([min(known[serial[i]].num_devices) for i in order.tolist()], np.int64)
        counts = np.where(counts > 0, counts, least)
        return Allocation(Queue(order, counts), reasons=reasons), MappingProxyType(known)


def _why(job: int) -> str:
    return "jobs that are before it in the order of deadlines leave it too few devices"
