"""Recorder of a rank's steps: when each op of its routines began and ended."""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

import torch
from torch import fx

__all__ = ["Recorded", "StepRecorder", "read_recorded", "write_recorded"]

_MOST_STEPS = 5


class Recorded(NamedTuple):
    """One op of a recorded step.

    Attributes
    ----------
    action : of the schedule, such as ``0F1``; ``update`` at the end of a step.
    routine : that the op is of, such as ``0F``; empty for messages between actions.
    op : name of the node in the routine's graph.
    start_s, end_s : on the clock of the machine.
    """

    action: str
    routine: str
    op: str
    start_s: float
    end_s: float


class StepRecorder:
    """Records the last few steps of a rank.

    A graph that is watched calls the recorder after each of its ops; what it computes stays the same. An op is as long as
    from the end of the one before it. On a GPU every op is waited for, so none runs beside others.
    """

    def __init__(self, device: torch.device) -> None:
        self._is_cuda = device.type == "cuda"
        self.steps: deque[list[Recorded]] = deque(maxlen=_MOST_STEPS)
        self._action, self._last_s = "", 0.0

    def begin_step(self) -> None:
        """Begin a step; its predecessor is kept."""
        self.steps.append([])
        self.begin("totals")

    def begin(self, action: str) -> None:
        """Begin an action."""
        self._action, self._last_s = action, self._now_s()

    def tick(self, routine: str, op: str) -> None:
        """Note that an op has ended."""
        now_s = self._now_s()
        if self.steps:
            self.steps[-1].append(Recorded(self._action, routine, op, self._last_s, now_s))
        self._last_s = now_s

    def watch(self, graph_module: fx.GraphModule, routine: str) -> None:
        """Let a graph call the recorder after each op; in place, for the caller to recompile."""
        for node in list(graph_module.graph.nodes):
            if node.op != "call_function":
                continue
            with graph_module.graph.inserting_after(node):
                graph_module.graph.call_function(self.tick, (routine, node.name))

    def _now_s(self) -> float:
        if self._is_cuda:
            torch.cuda.synchronize()
        return time.perf_counter()


def write_recorded(recorder: StepRecorder, file: Path) -> None:
    """Write the steps of a rank, for `read_recorded`."""
    file.write_text(json.dumps([list(map(list, step)) for step in recorder.steps]))


def read_recorded(files: Iterable[Path]) -> list[list[list[Recorded]]]:
    """Read the steps of all ranks: by rank, then by step."""
    made: Callable[[list[object]], Recorded] = Recorded._make
    return [[[made(op) for op in step] for step in json.loads(file.read_text())] for file in files]
