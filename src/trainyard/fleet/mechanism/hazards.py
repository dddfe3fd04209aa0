"""What goes wrong: processes that die, nodes that go away and devices that are slow, drawn from a seed.

Failures of jobs are a Poisson process with a rate per device: M. Jeon et al. ("Analysis of Large-Scale Multi-Tenant GPU
Clusters for DNN Training Workloads", USENIX ATC 2019) find that jobs fail the more often, the more devices they have.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trainyard.fleet.errors import FleetError
from trainyard.fleet.periods import check_period

_INF = float("inf")


@dataclass(frozen=True)
class Hazards:
    """How often things go wrong.

    Attributes
    ----------
    failure_every_s : mean time between failures of one device; infinite for never. A job whose device fails loses what
        it did since its last checkpoint, and restarts where it is.
    checkpoint_every_s : between checkpoints of a running job; it has one whenever it starts.
    node_failure_every_s : mean time between failures of one node; infinite for never. Jobs on it lose the same, and wait.
    node_repair_s : mean time until it is back.
    straggler_share : of all starts of jobs that are slow, until the job is moved.
    straggler_speed : of such a job, in proportion to what it should be.
    seed : of the draws.
    """

    failure_every_s: float = _INF
    checkpoint_every_s: float = 600.0
    node_failure_every_s: float = _INF
    node_repair_s: float = 3600.0
    straggler_share: float = 0.0
    straggler_speed: float = 0.5
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("failure_every_s", "checkpoint_every_s", "node_failure_every_s", "node_repair_s"):
            check_period(name, getattr(self, name), endless=name != "node_repair_s")
        if not 0 <= self.straggler_share <= 1 or not 0 < self.straggler_speed <= 1:
            raise FleetError("the share of stragglers is from 0 to 1, and their speed above 0 and at most 1")
        if self.seed < 0:
            raise FleetError(f"the seed of what goes wrong is a whole number from 0, got {self.seed}")

    def __str__(self) -> str:
        """How often things go wrong, in words."""
        often = (("a device", self.failure_every_s), ("a node", self.node_failure_every_s))
        fails = (f"{what} fails every {every_s:g} s" for what, every_s in often if every_s < _INF)
        return ", ".join((*fails, f"jobs have a checkpoint every {self.checkpoint_every_s:g} s"))

    @property
    def are_there(self) -> bool:
        """Whether anything can go wrong."""
        return min(self.failure_every_s, self.node_failure_every_s) < _INF or self.straggler_share > 0


class Fate:
    """Draws what happens, in the order in which it is asked: a run with the same seed repeats."""

    def __init__(self, hazards: Hazards) -> None:
        self.hazards = hazards
        self._rng = np.random.default_rng(hazards.seed)

    def speed(self) -> float:
        """Speed of a job that starts, in proportion to what it should be."""
        if self.hazards.straggler_share and self._rng.random() < self.hazards.straggler_share:
            return self.hazards.straggler_speed
        return 1.0

    def time_to_failure_s(self, num_devices: int) -> float:
        """Time until one of so many devices fails."""
        if self.hazards.failure_every_s == _INF:
            return _INF
        return float(self._rng.exponential(self.hazards.failure_every_s / num_devices))

    def time_to_node_failure_s(self) -> float:
        """Time until a node that is there goes away."""
        every_s = self.hazards.node_failure_every_s
        return _INF if every_s == _INF else float(self._rng.exponential(every_s))

    def time_to_repair_s(self) -> float:
        """Time until a node that is away comes back."""
        return float(self._rng.exponential(self.hazards.node_repair_s))
