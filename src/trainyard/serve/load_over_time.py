"""Waiting and running requests, and the KV cache in use, over time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainyard.serve.batch import Batch
from trainyard.serve.instance import Generated, Instance
from trainyard.serve.request_state import RequestState

__all__ = ["Load", "LoadOverTime", "LoadRecordingInstance"]

Floats = NDArray[np.float64]

_NUM_PARTS = 2_000  # when a run takes more, two become one
_FIRST_PART_S = 2.0**-10


@dataclass(frozen=True, eq=False)
class Load:
    """Means over equal intervals of time, from 0 on, of all replicas together.

    Attributes
    ----------
    part_s : length of an interval; the last one may be shorter.
    num_waiting, num_running : requests without and with blocks, [interval].
    cache : share of the blocks that requests hold, [interval].
    """

    part_s: float
    num_waiting: Floats
    num_running: Floats
    cache: Floats

    @property
    def starts_s(self) -> Floats:
        """Start of each interval, [interval]."""
        return self.part_s * np.arange(len(self.cache), dtype=np.float64)


class LoadOverTime:
    """Accumulates the load of replicas, in memory that does not grow with the run.

    Parameters
    ----------
    num_blocks : KV cache of each replica, in blocks.
    """

    def __init__(self, num_blocks: int) -> None:
        self._num_blocks = num_blocks
        self._of_instance: list[tuple[int, int, int]] = []
        self._now = np.zeros(3)
        self._sums = np.zeros((_NUM_PARTS, 3))
        self._part_s, self._last_s = _FIRST_PART_S, 0.0

    def add_instance(self) -> int:
        """Add an idle instance; return its number."""
        self._of_instance.append((0, 0, 0))
        return len(self._of_instance) - 1

    def set(self, number: int, at_s: float, waiting: int, running: int, held: int) -> None:
        """Set the waiting and running requests of an instance, and the blocks held, from now on."""
        self._advance(at_s)
        was, self._of_instance[number] = self._of_instance[number], (waiting, running, held)
        self._now += (waiting - was[0], running - was[1], held - was[2])

    def load(self) -> Load:
        """The load up to the last change."""
        num = int(np.ceil(self._last_s / self._part_s))
        lengths = np.minimum(self._part_s, self._last_s - self._part_s * np.arange(num))
        waiting, running, held = (self._sums[:num] / lengths[:, None]).T
        return Load(
            self._part_s, waiting, running, held / (self._num_blocks * max(len(self._of_instance), 1))
        )

    def _advance(self, at_s: float) -> None:
        while at_s >= self._part_s * _NUM_PARTS:
            pairs = self._sums.reshape(_NUM_PARTS // 2, 2, 3).sum(axis=1)
            self._sums = np.concatenate((pairs, np.zeros_like(pairs)))
            self._part_s *= 2
        first, last = int(self._last_s / self._part_s), int(at_s / self._part_s)
        if first == last:
            self._sums[first] += self._now * (at_s - self._last_s)
        else:
            self._sums[first] += self._now * ((first + 1) * self._part_s - self._last_s)
            self._sums[first + 1 : last] += self._now * self._part_s
            self._sums[last] += self._now * (at_s - last * self._part_s)
        self._last_s = at_s


class LoadRecordingInstance(Instance):
    """An instance that records its load whenever that changes.

    Parameters
    ----------
    load : collects it.
    given, more : arguments of `Instance`.
    """

    def __init__(self, load: LoadOverTime, *given: Any, **more: Any) -> None:
        super().__init__(*given, **more)
        self._load, self._number = load, load.add_instance()

    def arrive(self, state: RequestState) -> str:
        why = super().arrive(state)
        self._tell(state.arrival_s)
        return why

    def decide(self, now_s: float) -> Batch:
        batch = super().decide(now_s)
        self._tell(now_s)
        return batch

    def complete(self, batch: Batch, now_s: float, generated: Generated) -> list[RequestState]:
        done = super().complete(batch, now_s, generated)
        self._tell(now_s)
        return done

    def _tell(self, now_s: float) -> None:
        held = self.cache.num_blocks - self.cache.num_free
        self._load.set(self._number, now_s, len(self.queues.waiting), len(self.queues.running), held)
