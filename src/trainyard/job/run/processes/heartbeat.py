"""Heartbeats: find processes that are stopped, and processes that run and do no step.

A thread of every process counts up while the process runs, whatever the process computes or waits for. The watcher does
not compare clocks: silence is time in which the watcher itself ran and saw no change. A watcher that was stopped for
hours, or was just started, has seen no silence.

A process may be silent on a busy machine because it gets no core, or because it holds Python's lock while it computes. So
the watcher asks the system about processes of this machine, too. Such a process counts as stopped only if a signal has
stopped it, or if it used no CPU for ten minutes.
"""

from __future__ import annotations

import mmap
import threading
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Generic, TypeVar

from trainyard.processes import IDLE_S, ProcessState

__all__ = ["Heartbeats", "RankProblem", "Silence", "SuspensionDetector", "beating"]

K = TypeVar("K", bound=Hashable)

_BEATS_PER_LIMIT = 10
_LOOKS_PER_LIMIT = 4
# Time to compile, and to touch memory for the first time.
_FIRST_STEP_S = 1800.0


class Silence(Generic[K]):
    """Measures for how long values have not changed while their watcher ran.

    Parameters
    ----------
    longest_gap_s : most that counts of the time between two looks.
    clock : returns the watcher's time, in seconds.
    """

    def __init__(self, longest_gap_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._longest_gap_s, self._clock = longest_gap_s, clock
        self._looked_s: float | None = None
        self._seen: dict[K, object] = {}
        self._silent_s: dict[K, float] = {}

    def look(self, beats: Mapping[K, object]) -> dict[K, float]:
        """Return the seconds since each beat last changed. Keys that are not given are forgotten."""
        now_s = self._clock()
        passed_s = 0.0 if self._looked_s is None else min(now_s - self._looked_s, self._longest_gap_s)
        self._looked_s = now_s
        self._silent_s = {
            key: self._silent_s[key] + passed_s if key in self._seen and self._seen[key] == beat else 0.0
            for key, beat in beats.items()
        }
        self._seen = dict(beats)
        return self._silent_s


class SuspensionDetector(Generic[K]):
    """Finds processes that are stopped and will not go on.

    Parameters
    ----------
    limit_s : longest time without a heartbeat of a process that the system reports as stopped, or does not know.
    longest_gap_s, clock : see `Silence`.
    """

    def __init__(
        self, limit_s: float, longest_gap_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._limit_s, self._idle_limit_s = limit_s, max(limit_s, IDLE_S)
        self._stopped, self._idle = Silence[K](longest_gap_s, clock), Silence[K](longest_gap_s, clock)
        self._num_looks = 0

    def look(self, beats: Mapping[K, object], states: Mapping[K, ProcessState]) -> dict[K, str]:
        """Return what each stopped process did, the longest idle one first.

        Parameters
        ----------
        beats : heartbeats of all processes.
        states : of the processes on this machine.
        """
        self._num_looks += 1
        works = {key for key, state in states.items() if not state.is_stopped}
        cpu_s = {key: state.cpu_s for key, state in states.items()}
        stopped_s = self._stopped.look(
            {key: (beat, self._num_looks if key in works else None) for key, beat in beats.items()}
        )
        idle_s = self._idle.look({key: (beat, cpu_s.get(key)) for key, beat in beats.items()})
        found = {}
        for key in sorted(beats, key=idle_s.__getitem__, reverse=True):
            if stopped_s[key] > self._limit_s:
                found[key] = f"gave no heartbeat for {stopped_s[key]:.0f} s"
            elif idle_s[key] > self._idle_limit_s:
                found[key] = f"gave no heartbeat and used no CPU for {idle_s[key]:.0f} s"
        return found


@contextmanager
def beating(beat: Callable[[], None], limit_s: float) -> Iterator[None]:
    """Call a function in a thread, ten times in ``limit_s``, while the context is open."""
    ended = threading.Event()

    def run() -> None:
        while not ended.wait(limit_s / _BEATS_PER_LIMIT):
            beat()

    beat()
    thread = threading.Thread(target=run, daemon=True, name="heartbeat")
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@dataclass(frozen=True)
class RankProblem:
    """A rank that does not work, and why; ``stopped`` if its process was stopped from outside."""

    rank: int
    reason: str
    stopped: bool

    def __str__(self) -> str:
        return f"rank {self.rank} {self.reason}"


class Heartbeats:
    """Signs of life of ranks that are forked from this process, and the steps that they have done.

    They are in memory that all ranks share, so that nothing is sent and nobody waits.

    Parameters
    ----------
    ranks : ranks that will be forked.
    limit_s : see `SuspensionDetector`.
    stall_s : longest time of a step; a rank that takes longer counts as stuck. A first step may take half an hour in any
        case. Time in which one of the ranks waits for a core does not count.
    clock : returns this process's time, in seconds.

    Attributes
    ----------
    look_s : seconds from one look to the next.
    """

    def __init__(
        self,
        ranks: Iterable[int],
        limit_s: float,
        stall_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._places = {rank: 2 * place for place, rank in enumerate(ranks)}
        self._limit_s, self._stall_s = limit_s, stall_s
        self.look_s = min(1.0, limit_s / _LOOKS_PER_LIMIT, stall_s / _LOOKS_PER_LIMIT)
        self._counts = memoryview(mmap.mmap(-1, 16 * max(1, len(self._places)))).cast("Q")
        gap_s = 2 * self.look_s  # more than this counts as time in which this process was stopped
        self._suspended, self._cores = SuspensionDetector[int](limit_s, gap_s, clock), _CoreClock(clock)
        self._stall = Silence[int](gap_s, self._cores)

    # In the process of a rank.

    def alive(self, rank: int) -> None:
        """Start the heartbeats of a rank; called in its process."""
        threading.Thread(target=self._beat, args=(self._places[rank],), daemon=True, name="heartbeat").start()

    def _beat(self, place: int) -> None:
        while True:
            self._counts[place] += 1
            time.sleep(self._limit_s / _BEATS_PER_LIMIT)

    def stepped(self, rank: int) -> None:
        """Count a finished step of a rank; called in its process."""
        self._counts[self._places[rank] + 1] += 1

    # In the process that has forked them.

    def problem(self, running: Mapping[int, ProcessState]) -> RankProblem | None:
        """Return a rank that is stopped or stuck, and why; None if there is none. Call this every ``look_s``.

        Parameters
        ----------
        running : state of the processes of all ranks that should be alive.
        """
        stopped = self._suspended.look({rank: self._counts[self._places[rank]] for rank in running}, running)
        for rank, said in stopped.items():
            return RankProblem(rank, f"{said}: its process is stopped", stopped=True)
        self._cores.look(running)
        steps = {rank: self._counts[self._places[rank] + 1] for rank in running}
        stalled = self._stall.look(steps)
        for rank in running:
            limit_s = self._stall_s if steps[rank] else max(self._stall_s, _FIRST_STEP_S)
            if stalled[rank] > limit_s:
                reason = f"has done no step for {stalled[rank]:.0f} s, though its process lives"
                return RankProblem(rank, reason, stopped=False)
        return None


class _CoreClock:
    """A clock that leaves out time in which a rank waits for a core, because all other ranks then wait for this rank.

    While a rank wants a core, the clock advances by the CPU seconds of the rank that used the most. Else it advances by
    the time that passes.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._now_s, self._looked_s = 0.0, clock()
        self._cpu_s: dict[int, float] = {}

    def __call__(self) -> float:
        return self._now_s

    def look(self, running: Mapping[int, ProcessState]) -> None:
        """Advance the clock."""
        looked_s = self._clock()
        passed_s, self._looked_s = looked_s - self._looked_s, looked_s
        used_s = [each.cpu_s - self._cpu_s.get(rank, each.cpu_s) for rank, each in running.items()]
        self._cpu_s = {rank: each.cpu_s for rank, each in running.items()}
        wants_core = any(each.is_runnable for each in running.values())
        self._now_s += min(passed_s, max(used_s)) if wants_core else passed_s
