"""Which jobs have a node that gives no heartbeat any more, as whoever runs them has seen it."""

from __future__ import annotations

import time
from collections.abc import Callable

from trainyard.fleet.run.job_directory import JobDirectory
from trainyard.job.run.processes.heartbeat import Silence

__all__ = ["NodeWatch"]

_LOOKS_PER_LIMIT = 20


class NodeWatch:
    """Looks at the heartbeats that nodes leave in the folders of their jobs, not more often than makes sense.

    Parameters
    ----------
    limit_s : after which a node that gives no heartbeat counts as stopped or lost.
    clock : of this process, in seconds.
    """

    def __init__(self, limit_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit_s, self._clock = limit_s, clock
        self._silences: dict[str, Silence[str]] = {}
        self._look_s: dict[str, float] = {}

    def problem(self, directory: JobDirectory) -> str | None:
        """What is wrong with a node of a job that runs; None if nothing is."""
        name, now_s = directory.path.name, self._clock()
        if now_s < self._look_s.get(name, now_s):
            return None
        self._look_s[name] = now_s + self._limit_s / _LOOKS_PER_LIMIT
        silence = self._silences.setdefault(name, Silence(self._limit_s / 4, self._clock))
        silent = silence.look(directory.heartbeats())
        rank = max(silent, key=silent.__getitem__, default=None)
        if rank is None or silent[rank] <= self._limit_s:
            return None
        gave = f"the node of rank {rank} gave no heartbeat for {silent[rank]:.0f} s"
        return f"{gave}: its processes are stopped, or it is lost"

    def forget(self, name: str) -> None:
        """A job does not run, or is not to give heartbeats now: when it does again, counting begins anew."""
        self._silences.pop(name, None)
        self._look_s.pop(name, None)
