"""Limits of failures and waits after which a run gives up."""

from __future__ import annotations

import math
from dataclasses import dataclass

from trainyard.fleet.run.backend import Progress

__all__ = ["Failures", "Patience"]

_MOST_DOUBLED = 4


@dataclass(frozen=True)
class Patience:
    """Limits of failures and waits after which a run gives up.

    Attributes
    ----------
    max_failures : of one job without a new checkpoint between; it is started again from its last one until then, and
        given up after that, or at once where it would fail again in the same way.
    max_kills : the same for those that were not its own: its processes were killed. That happens to jobs that are sound,
        but a machine that is short of memory kills, too, and will again.
    retry_s : after a second failure the job is started again when this time has passed, after every other one of its own
        when four times as much has as before: what is wrong with a node is found out meanwhile. Where what all jobs need
        is not there, it is started again after this time, and twice as much after each other one, up to sixteen times.
    lacks_s : so long may what all jobs need be away, such as space on the disk.
    limit_s : of the whole run.
    """

    max_failures: int = 4
    max_kills: int = 20
    retry_s: float = 5.0
    lacks_s: float = 600.0
    limit_s: float = math.inf


@dataclass
class Failures:
    """Failures of one job since its last new checkpoint.

    Attributes
    ----------
    own, kills : how many.
    lacks, lacking_since_s : how often what all jobs need was not there, one time after the other, and since when; these
        do not count as its own.
    lack : what that was, if it was so the last time.
    steps : that it had done at the last one.
    retry_s : when it may be started again.
    """

    own: int = 0
    kills: int = 0
    lacks: int = 0
    lacking_since_s: float = 0.0
    lack: str = ""
    steps: int = 0
    retry_s: float = 0.0

    def note(self, progress: Progress, now_s: float, patience: Patience) -> bool:
        """Count one more; whether the job is given up."""
        if progress.steps is not None:
            if progress.steps > self.steps:
                self.own = self.kills = self.lacks = 0
            self.steps = progress.steps
        if progress.lacks:
            return self._note_lack(progress, now_s, patience)
        self.lacks, self.lack = 0, ""
        if progress.killed:
            self.kills += 1
        else:
            self.own += 1
        wait_s = patience.retry_s * 4.0 ** max(0, self.own - 2) if self.own + self.kills > 1 else 0.0
        self.retry_s = now_s + wait_s
        return progress.repeats or self.own > patience.max_failures or self.kills > patience.max_kills

    def _note_lack(self, progress: Progress, now_s: float, patience: Patience) -> bool:
        if not self.lacks:
            self.lacking_since_s = now_s
        self.lack = progress.failure or ""
        self.retry_s = now_s + patience.retry_s * 2.0 ** min(self.lacks, _MOST_DOUBLED)
        self.lacks += 1
        return now_s - self.lacking_since_s > patience.lacks_s
