"""A model that computes nothing, and takes as long as another one would on other hardware."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from trainyard.serve.batch import CacheOp, WorkItem
from trainyard.serve.errors import ServeError
from trainyard.serve.request_state import RequestState
from trainyard.serve.step_time import StepTime

__all__ = ["SimulatedModel"]

_REPORT_S = 0.1
_CERTAIN = 50.0  # so much more likely than all others, as a logarithm, that it is drawn at any temperature


def _report_nothing() -> None:
    """Tell nobody."""


@dataclass
class SimulatedModel:
    """Waits for the time of each step; every answer is the same text, again and again.

    Parameters
    ----------
    name : of the model that it stands for.
    step_time : how long its steps take.
    context : the longest sequence, in tokens.
    vocabulary : number of tokens of its tokenizer.
    answer : tokens of that text.
    """

    name: str
    step_time: StepTime
    context: int
    vocabulary: int
    answer: tuple[int, ...]
    _report: Callable[[], None] = field(default_factory=lambda: _report_nothing, init=False, repr=False)

    def new_cache(self, num_blocks: int, block_tokens: int, num_host_blocks: int) -> None:
        """Nothing is kept."""

    def apply(self, ops: Sequence[CacheOp]) -> None:
        """Nothing is copied."""

    def load_adapter(self, adapter: str, folder: Path) -> None:
        """Not done: nothing says how long steps take with it."""
        raise ServeError(
            f"{self.name} is simulated, and simulated models have no adapters; leave {adapter} out"
        )

    def unload_adapter(self, adapter: str) -> None:
        """There are none."""

    def report_progress(self, report: Callable[[], None]) -> None:
        """Report while a step waits: it uses no CPU and is not stuck, however long it is."""
        self._report = report

    def close(self) -> None:
        """Nothing was started."""

    def logits(
        self, items: Sequence[WorkItem], requests: Mapping[int, RequestState], rows: Sequence[int]
    ) -> Tensor:
        """Logits by which the next token of the answer is certain."""
        began_s = time.perf_counter()
        found = torch.zeros(len(rows), self.vocabulary)
        ends = np.cumsum([item.stop - item.start for item in items])
        for i, item in enumerate(np.searchsorted(ends, rows, side="right")):
            place = requests[items[item].request].num_generated % len(self.answer)
            found[i, self.answer[place]] = _CERTAIN
        end_s = began_s + self.step_time.seconds(items, requests)
        while (left_s := end_s - time.perf_counter()) > 0.0:
            time.sleep(min(left_s, _REPORT_S))
            self._report()
        return found
