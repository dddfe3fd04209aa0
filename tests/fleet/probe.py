"""A policy that is looked at: what tests derive from to see what it is told and what it says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from trainyard.fleet.allocation import Allocation
from trainyard.fleet.policy import Policy
from trainyard.fleet.snapshot import Need, Snapshot
from trainyard.hardware.cluster import Cluster


@dataclass
class Probe:
    """Decides as the policy in it does."""

    policy: Policy

    @property
    def needs(self) -> frozenset[Need]:
        return self.policy.needs

    @property
    def preempts(self) -> bool:
        return self.policy.preempts

    def start(self, cluster: Cluster) -> Any:
        return self.policy.start(cluster)

    def decide(self, snapshot: Snapshot, state: Any) -> tuple[Allocation, Any]:
        return self.policy.decide(snapshot, state)
