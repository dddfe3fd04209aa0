"""Synergy as its authors' program packs jobs: in the order of the queue, on the first devices that have room.

Under LAS, those with most devices come first. A job that has more than its share of anything gives back all of that where
another lacks something.

J. Mohan et al., "Looking Beyond GPUs for DNN Scheduling on Multi-Tenant Clusters", OSDI 2022; msr-fiddle/synergy.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trainyard.fleet.place.packing import Bools, Ints, Packing, filled
from trainyard.fleet.policies.synergy import Demand, Synergy
from trainyard.hardware.cluster import Cluster


class FirstFit(Packing):
    """Jobs on the first nodes that have room."""

    def of_nodes(self, room: Ints, count: int) -> dict[int, int] | None:
        return filled(range(len(room)), room, count)

    def gives(self, excess: Bools, lacks: Bools) -> bool:
        return bool(excess.any())

    def by_devices(self, count: int) -> dict[int, int]:
        room = self.devices_free
        suits = np.nonzero(room >= count)[0]
        if len(suits):
            return {int(suits[0] if count > 1 else suits[np.argmin(room[suits])]): count}
        return filled(np.argsort(room, kind="stable").tolist(), room, count)


@dataclass(frozen=True)
class SynergyProgram(Synergy):
    """The policy."""

    def packing(self, cluster: Cluster) -> Packing:
        return FirstFit(cluster)

    def packing_order(self, runnable: Ints, demands: list[Demand]) -> list[int]:
        """As they come."""
        jobs: list[int] = runnable.tolist()
        return sorted(jobs, key=lambda i: -demands[i].needs[0]) if self.order == "las" else jobs
