"""When every task ran, and what follows from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from trainyard.engine.breakdown import Breakdown, busy_s_by_resource, device_breakdown
from trainyard.engine.tasks import Floats, Ints, TaskGraph


@dataclass(frozen=True, slots=True)
class CriticalStep:
    """One task of a critical path.

    Attributes
    ----------
    task : int
    start_s, end_s : float
        Seconds.
    because : "predecessor", "resource" or "release"
        What kept it from starting earlier: the task before it on the path had to end, as its predecessor or
        as the task before it on a resource; or, for the first step only, its own release time.
    """

    task: int
    start_s: float
    end_s: float
    because: Literal["predecessor", "resource", "release"]


@dataclass(frozen=True, slots=True, eq=False)
class Timeline:
    """The result of a simulation; arrays have one entry per task.

    Attributes
    ----------
    graph : TaskGraph
    start_s, end_s : float64 arrays (N,)
        Seconds.
    bound_by : int64 array (N,)
        The task whose end let this one start, at that very time; -1 if its release time did.
    start_step, end_step : int64 arrays (N,)
        A causal order of starts and ends that also holds within one instant; equal numbers are simultaneous.
    """

    graph: TaskGraph
    start_s: Floats
    end_s: Floats
    bound_by: Ints
    start_step: Ints
    end_step: Ints

    @property
    def makespan_s(self) -> float:
        """End of the last task, in seconds from time 0; 0 without tasks."""
        return float(self.end_s.max(initial=0.0))

    def memory_curve(self, device: int) -> tuple[Floats, Ints]:
        """Memory in use on a device over time, as a staircase.

        Within an instant all simultaneous changes count at once, and what ends ends before something starts.

        Parameters
        ----------
        device : int

        Returns
        -------
        times_s : float64 array (k,)
            Not decreasing, from 0.
        used_bytes : int64 array (k,)
            Bytes in use from that time to the next one. Where a time occurs twice, the earlier entries are
            levels passed through at that instant.
        """
        graph = self.graph
        base = int(graph.device_base_bytes[device])
        here = np.flatnonzero(graph.memory_device == device)
        tasks = graph.memory_task[here]
        changes = np.concatenate((graph.memory_start_bytes[here], graph.memory_end_bytes[here]))
        step = np.concatenate((self.start_step[tasks], self.end_step[tasks]))
        time_s = np.concatenate((self.start_s[tasks], self.end_s[tasks]))
        some = changes != 0
        steps, first, group = np.unique(step[some], return_index=True, return_inverse=True)
        total = np.zeros(len(steps), np.int64)
        np.add.at(total, group, changes[some])
        levels = np.concatenate((np.full(1, base, np.int64), base + np.cumsum(total)))
        return np.concatenate((np.zeros(1), time_s[some][first])), levels

    def with_more_memory(self, num_bytes: Sequence[int]) -> Timeline:
        """The same with more bytes occupied on each device all the time."""
        base = self.graph.device_base_bytes + np.array(num_bytes, np.int64)
        return replace(self, graph=replace(self.graph, device_base_bytes=base))

    def peak_bytes(self, device: int) -> int:
        """Most memory in use on a device at any time, in bytes."""
        return int(self.memory_curve(device)[1].max())

    def critical_path(self) -> tuple[CriticalStep, ...]:
        """Walk back from the last task to end over what bound each start.

        Every step but the first starts when the one before it ends, and the first at its release time, so the
        lengths of the steps and that release time add up to the makespan.
        """
        if not len(self.end_s):
            return ()
        steps = []
        task = int(np.argmax(self.end_s))
        while task >= 0:
            before = int(self.bound_by[task])
            because: Literal["predecessor", "resource", "release"] = "release"
            if before >= 0:
                because = "predecessor" if before in self.graph.predecessors_of(task) else "resource"
            steps.append(CriticalStep(task, float(self.start_s[task]), float(self.end_s[task]), because))
            task = before
        return tuple(reversed(steps))

    def busy_s(self) -> Floats:
        """Occupied seconds of each serial resource by category: float64 array (resources, categories)."""
        return busy_s_by_resource(self.graph, self.start_s, self.end_s)

    def breakdown(self, device: int) -> Breakdown:
        """Where the makespan went on a device: computing, exposed communication, bubble."""
        return self.breakdowns()[device]

    def breakdowns(self) -> tuple[Breakdown, ...]:
        """`breakdown` of every device, in one pass over the tasks."""
        return device_breakdown(self.graph, self.start_s, self.end_s, self.makespan_s)
