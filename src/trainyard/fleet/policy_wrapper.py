"""A policy around another one: what derives from it changes or watches the decisions of the other."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from trainyard.fleet.allocation import Allocation
from trainyard.fleet.policy import Policy
from trainyard.fleet.snapshot import Need, Snapshot
from trainyard.fleet.traits import Traits, traits_of
from trainyard.hardware.cluster import Cluster

__all__ = ["PolicyWrapper"]


@dataclass
class PolicyWrapper:
    """Decide as another policy.

    Attributes
    ----------
    policy : the other one.
    """

    policy: Policy

    @property
    def needs(self) -> frozenset[Need]:
        """Needs of the other policy."""
        return self.policy.needs

    @property
    def preempts(self) -> bool:
        """Whether the other policy takes devices away from running jobs."""
        return self.policy.preempts

    @property
    def traits(self) -> Traits:
        """Traits of the other policy, without its compiled code, which would decide without asking this one."""
        return replace(traits_of(self.policy), compiled=None)

    def start(self, cluster: Cluster) -> Any:
        """Return the other policy's state before the first decision."""
        return self.policy.start(cluster)

    def decide(self, snapshot: Snapshot, state: Any) -> tuple[Allocation, Any]:
        """Return the other policy's decision and next state."""
        return self.policy.decide(snapshot, state)
