"""Whether a GPU takes one more session, as Nexus decides when a session comes between two packings."""

from __future__ import annotations

import math
from dataclasses import dataclass

from trainyard.serve.policies.nexus.packing import Session

__all__ = ["PreparedSession", "admits", "prepared"]

_NEAR = 1e-9
# A batch that is larger than a whole number by less than this is rounded down.
_EXCESS = 1e-3


@dataclass(frozen=True)
class PreparedSession:
    """A session as a GPU would have it for itself.

    Attributes
    ----------
    session : with the rate that one GPU can serve, if it asks for more.
    batch : in every cycle.
    max_batch : largest within its objective.
    duty_s : longest cycle that keeps its objective.
    """

    session: Session
    batch: int
    max_batch: int
    duty_s: float

    def batch_in(self, duty_s: float) -> int:
        """Its batch in a cycle of another length."""
        wanted = duty_s * self.session.rate_per_s
        below = math.floor(wanted)
        return below if below and wanted - below < _EXCESS else math.ceil(wanted)

    def latency_in(self, duty_s: float) -> float:
        """Seconds of that batch."""
        return self.session.profile.latency(min(self.batch_in(duty_s), self.max_batch))


def prepared(session: Session, network_s: float = 0.002) -> PreparedSession:
    """A session alone on a GPU.

    Parameters
    ----------
    network_s : what requests and answers take on their way.
    """
    profile, limit_s, rate = session.profile, session.objective_s, session.rate_per_s
    within = profile.within((limit_s - network_s - profile.outside_s) / 2) or profile.batches[:1]
    largest = within[-1]
    full_s = profile.latency(largest)
    if rate >= largest / full_s:
        most = Session(session.name, profile, limit_s, largest / full_s)
        return PreparedSession(most, largest, largest, full_s)
    batch = 1
    for b in range(2, largest + 1):
        if (b - 1) / rate + profile.latency(b) + profile.outside_s > limit_s + _NEAR:
            break
        batch = b
    duty_s = min(limit_s - profile.latency(batch) - profile.outside_s, batch / rate)
    return PreparedSession(session, batch, largest, duty_s)


def admits(present: tuple[PreparedSession, ...], new: PreparedSession) -> tuple[bool, float]:
    """Whether a GPU takes one more session, and how much of its time would then be occupied."""
    every = (*present, new)
    duty_s = min(each.duty_s for each in every)
    if present:
        occupancy = sum(each.latency_in(duty_s) for each in every) / duty_s
    else:
        occupancy = new.session.profile.latency(new.batch) / duty_s
    return occupancy <= 1 + _NEAR, occupancy
