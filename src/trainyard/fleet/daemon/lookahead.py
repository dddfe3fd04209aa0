"""Looking at jobs beside the scheduler: what it would have to predict of them takes long, and is known when it asks."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from heapq import heappop, heappush
from queue import Empty, SimpleQueue

from trainyard.fleet.daemon.tables import Record
from trainyard.fleet.workload.level1 import UnansweredError, only_quick_answers

__all__ = ["Lookahead"]

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 15.0, 600.0


class Lookahead:
    """Looks at jobs in a thread of its own, one after the other, and in another at those that take long.

    A job that cannot be looked at now, for this machine is busy or short of memory, is looked at again after a pause, and
    after a longer one each time.

    Parameters
    ----------
    look : at a job; what is wrong with it the scheduler finds, too, and says. See `only_quick_answers`.
    done : called when a job has been looked at.
    put_off : called with a job that cannot be looked at now, and why.
    first_pause_s : after which a job is looked at again; the next one is twice as long, and so on up to ten minutes.
    """

    def __init__(
        self,
        look: Callable[[Record], object],
        done: Callable[[], None],
        put_off: Callable[[Record, str], None],
        first_pause_s: float = _FIRST_PAUSE_S,
    ) -> None:
        self._look, self._done, self._put_off, self._first_pause_s = look, done, put_off, first_pause_s
        self._new: SimpleQueue[Record] = SimpleQueue()
        self._slow: SimpleQueue[Record] = SimpleQueue()
        self._coming: set[str] = set()
        self._seen: set[str] = set()
        # Of the thread for those that take long: when to look again, by number, and the last pause, by name.
        self._again: list[tuple[float, int, Record]] = []
        self._pause_s: dict[str, float] = {}
        for run in (self._look_at_new, self._look_at_slow):
            threading.Thread(target=run, daemon=True, name="looking ahead").start()

    def has_seen(self, record: Record) -> bool:
        """Whether a job has been looked at; if not, it will be."""
        if record.name in self._seen:
            return True
        if record.name not in self._coming:
            self._coming.add(record.name)
            self._new.put(record)
        return False

    def keep(self, names: Collection[str]) -> None:
        """Forget all jobs but these."""
        self._seen.intersection_update(names)
        self._coming.intersection_update(names)

    def _look_at_new(self) -> None:
        while True:
            record = self._new.get()
            if self._takes_long(record):
                self._slow.put(record)
            else:
                self._note(record)

    def _takes_long(self, record: Record) -> bool:
        """Look at a job; whether it is to be looked at again, where nobody waits for it."""
        try:
            with only_quick_answers():
                self._look(record)
        except Exception as error:
            return isinstance(error, UnansweredError)
        return False

    def _look_at_slow(self) -> None:
        while True:
            record = self._next()
            why = "" if record.name not in self._coming else self._why_not(record)  # cancelled meanwhile
            if not why:
                self._pause_s.pop(record.name, None)
                self._note(record)
                continue
            pause_s = min(_LONGEST_PAUSE_S, 2.0 * self._pause_s.get(record.name, self._first_pause_s / 2.0))
            self._pause_s[record.name] = pause_s
            heappush(self._again, (time.monotonic() + pause_s, record.number, record))
            self._put_off(record, why)

    def _next(self) -> Record:
        """The next job: one that has waited for long enough, else one that comes."""
        while True:
            left_s = self._again[0][0] - time.monotonic() if self._again else None
            if left_s is not None and left_s <= 0.0:
                return heappop(self._again)[2]
            with suppress(Empty):
                return self._slow.get(timeout=left_s)

    def _why_not(self, record: Record) -> str:
        """Why a job cannot be looked at now; "" where it has been."""
        try:
            self._look(record)
        except UnansweredError as error:
            return str(error)
        except Exception:
            return ""  # the scheduler finds that, too
        return ""

    def _note(self, record: Record) -> None:
        self._seen.add(record.name)
        self._coming.discard(record.name)
        self._done()
