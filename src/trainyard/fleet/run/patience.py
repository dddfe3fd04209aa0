"""How much may go wrong before a run gives up."""

from __future__ import annotations

import math
from dataclasses import dataclass

from trainyard.fleet.run.backend import Progress

__all__ = ["Failures", "Patience"]


@dataclass(frozen=True)
class Patience:
    """How much goes wrong before a run gives up.

    Attributes
    ----------
    max_failures : of one job without a new checkpoint between; it is started again from its last one until then, and
        given up after that, or at once where it would fail again in the same way.
    max_kills : the same for those that were not its own: its processes were killed. That happens to jobs that are sound,
        but a machine that is short of memory kills, too, and will again.
    retry_s : after a second failure the job is started again when this time has passed, after every other one of its own
        when four times as much has as before: what is wrong with a node is found out meanwhile.
    limit_s : of the whole run.
    """

    max_failures: int = 4
    max_kills: int = 20
    retry_s: float = 5.0
    limit_s: float = math.inf


@dataclass
class Failures:
    """Of one job, since its last new checkpoint.

    Attributes
    ----------
    own, kills : how many.
    steps : that it had done at the last one.
    retry_s : when it may be started again.
    """

    own: int = 0
    kills: int = 0
    steps: int = 0
    retry_s: float = 0.0

    def note(self, progress: Progress, now_s: float, patience: Patience) -> bool:
        """Count one more; whether the job is given up."""
        if progress.steps > self.steps:
            self.own = self.kills = 0
        self.steps = progress.steps
        if progress.killed:
            self.kills += 1
        else:
            self.own += 1
        wait_s = patience.retry_s * 4.0 ** max(0, self.own - 2) if self.own + self.kills > 1 else 0.0
        self.retry_s = now_s + wait_s
        return progress.repeats or self.own > patience.max_failures or self.kills > patience.max_kills
