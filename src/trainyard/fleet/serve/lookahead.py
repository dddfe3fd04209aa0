"""Looking at jobs beside the scheduler: what it would have to predict of them takes long, and is known when it asks."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from contextlib import suppress
from queue import SimpleQueue

from trainyard.fleet.serve.tables import Record

__all__ = ["Lookahead"]


class Lookahead:
    """Looks at jobs in a thread of its own, one after the other.

    Parameters
    ----------
    look : at a job; what goes wrong with it the scheduler finds, too, and says.
    done : called when a job has been looked at.
    """

    def __init__(self, look: Callable[[Record], object], done: Callable[[], None]) -> None:
        self._look, self._done = look, done
        self._queue: SimpleQueue[Record] = SimpleQueue()
        self._coming: set[str] = set()
        self._seen: set[str] = set()
        threading.Thread(target=self._run, daemon=True, name="looking ahead").start()

    def has_seen(self, record: Record) -> bool:
        """Whether a job has been looked at; if not, it will be."""
        if record.name in self._seen:
            return True
        if record.name not in self._coming:
            self._coming.add(record.name)
            self._queue.put(record)
        return False

    def keep(self, names: Collection[str]) -> None:
        """Forget all jobs but these."""
        self._seen.intersection_update(names)

    def _run(self) -> None:
        while True:
            record = self._queue.get()
            with suppress(Exception):
                self._look(record)
            self._seen.add(record.name)
            self._coming.discard(record.name)
            self._done()
