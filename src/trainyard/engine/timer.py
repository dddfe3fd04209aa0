"""Timing one graph again and again: for searches that try thousands of orders and durations."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from trainyard.engine.builder import TaskGraphBuilder, column
from trainyard.engine.checking import check_reals
from trainyard.engine.simulate import check_all_ended, new_run, work_of
from trainyard.engine.tasks import Floats


class TaskTimer:
    """Tasks and what they wait for, built and checked once; a call says when they end.

    Parameters
    ----------
    resources : int array (n,) or (n, k)
        Serial resources that each task occupies from start to end, counted from 0; -1 stands for none.
    predecessors : int array (n,) or (n, k)
        Tasks that must have ended before each; -1 stands for none.

    Raises
    ------
    ValueError
        If the arrays do not have one entry per task, a task does not exist, or one names a resource twice.

    Examples
    --------
    >>> timer = TaskTimer([0, 1, 0], [-1, 0, -1])
    >>> timer([1.0, 2.0, 4.0]).tolist()
    [1.0, 3.0, 5.0]
    >>> timer([1.0, 2.0, 4.0], priority=[1, 0, 0]).tolist()
    [5.0, 7.0, 4.0]
    """

    def __init__(self, resources: ArrayLike, predecessors: ArrayLike) -> None:
        used = np.asarray(resources, np.int64)
        builder = TaskGraphBuilder()
        for resource in range(int(used.max(initial=-1)) + 1):
            builder.add_resource(str(resource))
        builder.add_tasks(np.zeros(len(used)), resources=used, predecessors=predecessors)
        self.graph = builder.build()
        self._work = work_of(self.graph)

    def __call__(
        self, duration_s: ArrayLike, *, priority: ArrayLike = 0, release_s: ArrayLike = 0.0
    ) -> Floats:
        """Seconds from the start of the first task to the end of each.

        Parameters
        ----------
        duration_s : float array (n,)
        priority : int array (n,) or scalar
            Among tasks that are ready for a resource the lowest goes first, then the one that became ready first.
        release_s : float array (n,) or scalar
            A task does not start before this time.

        Raises
        ------
        ValueError
            If there is not one entry per task, or a time is negative or not finite.
        DeadlockError
            If tasks wait for each other in a circle.
        """
        count = self.graph.num_tasks
        durations = column("duration_s", duration_s, count, np.float64)
        releases = column("release_s", release_s, count, np.float64)
        check_reals("duration_s", durations)
        check_reals("release_s", releases)
        priorities = column("priority", priority, count, np.int64)
        # Read-only as those of a graph: for others the loop would be compiled once more.
        for values in (durations, releases, priorities):
            values.setflags(write=False)
        work = self._work._replace(duration_s=durations, release_s=releases, priority=priorities)
        state, num_done = new_run(self.graph, work)
        check_all_ended(self.graph, state, num_done)
        return state.end_s
