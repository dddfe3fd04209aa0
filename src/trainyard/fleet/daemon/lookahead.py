"""Looking at jobs beside the scheduler: what it would have to predict of them takes long, and is known when it asks."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from contextlib import suppress
from queue import SimpleQueue

from trainyard.fleet.daemon.tables import Record
from trainyard.fleet.workload.level1 import BusyError, only_quick_answers

__all__ = ["Lookahead"]


class Lookahead:
    """Looks at jobs in a thread of its own, one after the other, and in another at those that take long.

    Parameters
    ----------
    look : at a job; what goes wrong with it the scheduler finds, too, and says. See `only_quick_answers`.
    done : called when a job has been looked at.
    """

    def __init__(self, look: Callable[[Record], object], done: Callable[[], None]) -> None:
        self._look, self._done = look, done
        self._new: SimpleQueue[Record] = SimpleQueue()
        self._slow: SimpleQueue[Record] = SimpleQueue()
        self._coming: set[str] = set()
        self._seen: set[str] = set()
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
        try:
            with only_quick_answers():
                self._look(record)
        except Exception as error:
            return isinstance(error, BusyError)
        return False

    def _look_at_slow(self) -> None:
        while True:
            record = self._slow.get()
            if record.name in self._coming:  # not cancelled meanwhile
                with suppress(Exception):
                    self._look(record)
            self._note(record)

    def _note(self, record: Record) -> None:
        self._seen.add(record.name)
        self._coming.discard(record.name)
        self._done()
