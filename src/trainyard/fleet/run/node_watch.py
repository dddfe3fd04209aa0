"""Which jobs have a node that gives no heartbeat any more, as whoever runs them has seen it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from trainyard.fleet.run.job_directory import JobDirectory
from trainyard.job.run.processes.heartbeat import SuspensionDetector
from trainyard.processes import ProcessState

__all__ = ["NodeWatch"]

_LOOKS_PER_LIMIT = 20


class NodeWatch:
    """Looks at the heartbeats that nodes leave in the folders of their jobs, not more often than makes sense.

    Parameters
    ----------
    limit_s : after which a node that gives no heartbeat counts as stopped or lost; see `SuspensionDetector`.
    clock : of this process, in seconds.
    """

    def __init__(self, limit_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit_s, self._clock = limit_s, clock
        self._suspended: dict[str, SuspensionDetector[str]] = {}
        self._look_s: dict[str, float] = {}

    def problem(
        self, directory: JobDirectory, states: Callable[[], Mapping[str, ProcessState]] = dict
    ) -> str | None:
        """Return the fault of a node of a running job; None if there is none.

        Parameters
        ----------
        states : gives what the system says of the processes that watch a node's ranks, by their first rank, as far as
            they are on this machine.
        """
        name, now_s = directory.path.name, self._clock()
        if now_s < self._look_s.get(name, now_s):
            return None
        self._look_s[name] = now_s + self._limit_s / _LOOKS_PER_LIMIT
        suspended = self._suspended.setdefault(
            name, SuspensionDetector(self._limit_s, self._limit_s / 4, self._clock)
        )
        for rank, said in suspended.look(directory.heartbeats(), states()).items():
            return f"the node of rank {rank} {said}: its processes are stopped, or it is lost"
        return None

    def forget(self, name: str) -> None:
        """A job does not run, or is not to give heartbeats now: when it does again, counting begins anew."""
        self._suspended.pop(name, None)
        self._look_s.pop(name, None)
