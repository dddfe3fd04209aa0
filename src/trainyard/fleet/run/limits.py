"""What a job may do at most, whatever backend runs it."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from trainyard.fleet.errors import FleetError

__all__ = ["USUAL_LIMITS", "JobLimits"]


@dataclass(frozen=True, kw_only=True)
class JobLimits:
    """What a job may do at most.

    Attributes
    ----------
    heartbeat_s : seconds without a heartbeat after which a process counts as stopped, or its host as lost.
    stall_s : seconds without a further step after which a process that lives counts as stuck; the first step may take
        half an hour in any case.
    max_checkpoint_bytes : that its checkpoints may take on the disk together.
    max_rank_bytes : of memory that each of its processes may take.
    """

    heartbeat_s: float = 60.0
    stall_s: float = 1800.0
    max_checkpoint_bytes: float = math.inf
    max_rank_bytes: float = math.inf

    def __post_init__(self) -> None:
        for limit in fields(JobLimits):
            if not getattr(self, limit.name) > 0.0:
                raise FleetError(f"{limit.name} is more than 0, got {getattr(self, limit.name)}")


USUAL_LIMITS = JobLimits()
"""What is allowed where nobody says anything."""
