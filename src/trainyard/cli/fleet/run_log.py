"""Print the events of a run as they happen, and count the jobs that are over, running, waiting and to come."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trainyard.fleet.run.event import Event
    from trainyard.fleet.workload.job import Job
    from trainyard.progress import Progress

__all__ = ["RunLog", "counted"]

_STAGE = "running the jobs"


class RunLog:
    """Prints the events of a run and reports its progress.

    Parameters
    ----------
    num_jobs : of the whole run.
    say : prints a line.
    progress : gets the numbers of jobs that are over, running, waiting and to come.
    """

    def __init__(self, num_jobs: int, say: Callable[[str], None], progress: Progress) -> None:
        self._num_jobs, self._say, self._progress = num_jobs, say, progress
        self._states: dict[str, str] = {}
        progress(_STAGE, self._counts())

    def hear(self, event: Event) -> None:
        """Print an event and report the new counts."""
        self._say(str(event))
        self._states[event.job.name] = _state_after(event)
        self._progress(_STAGE, self._counts())

    def _counts(self) -> str:
        now = Counter(self._states.values())
        to_come = self._num_jobs - len(self._states)
        over = f"{now['over']} of {self._num_jobs} over"
        return f"{over}, {now['running']} running, {now['waiting']} waiting, {to_come} to come"


def _state_after(event: Event) -> str:
    """Return the state of a job after an event: "running", "waiting" or "over"."""
    from trainyard.fleet.run.event import Happening

    match event.what:
        case Happening.RUNS | Happening.STAYS:
            return "running"
        case Happening.ARRIVES | Happening.LEAVES | Happening.FAILS | Happening.LOSES_NODE:
            return "waiting"
        case _:
            return "over"


def counted(jobs: Iterable[Job], stage: str, progress: Progress) -> Iterator[Job]:
    """Yield jobs; report each one as progress before it is yielded."""
    every = tuple(jobs)
    for number, job in enumerate(every, 1):
        progress(stage, f"{number} of {len(every)}, {job.name}")
        yield job
