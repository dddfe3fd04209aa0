"""Run a graph of tasks through the compiled event loop."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from trainyard.engine.builder import TaskGraphBuilder
from trainyard.engine.csr import row_of_each, to_lists
from trainyard.engine.errors import DeadlockError
from trainyard.engine.tasks import Ints, TaskGraph
from trainyard.engine.timeline import Timeline

if TYPE_CHECKING:
    from trainyard.engine.state import GraphArrays, State

_MAX_NAMED = 5


def simulate(graph: TaskGraph) -> Timeline:
    """Find when every task starts and ends; `trainyard.engine.tasks` defines the semantics.

    Deterministic: the same graph gives the same timeline to the last bit. The first call in a process loads
    Numba and the compiled loop from its cache; the first call after an installation compiles it.

    Parameters
    ----------
    graph : TaskGraph

    Returns
    -------
    Timeline

    Raises
    ------
    DeadlockError
        If tasks wait for each other in a circle; names up to five of them and what they wait for.
    """
    run_state, num_done = new_run(graph, work_of(graph))
    check_all_ended(graph, run_state, num_done)
    kept = (
        run_state.start_s,
        run_state.end_s,
        run_state.bound_by,
        run_state.start_step,
        run_state.end_step,
    )
    for values in kept:
        values.setflags(write=False)
    return Timeline(graph, *kept)


def work_of(graph: TaskGraph) -> GraphArrays:
    """A graph as the compiled loop reads it: with successors instead of predecessors."""
    from trainyard.engine import state

    after = row_of_each(graph.predecessor_offsets)
    successor_offsets, successors = to_lists(graph.predecessors, after, graph.num_tasks)
    return state.GraphArrays(
        duration_s=graph.duration_s,
        num_bytes=graph.num_bytes,
        release_s=graph.release_s,
        priority=graph.priority,
        successor_offsets=successor_offsets,
        successors=np.ascontiguousarray(successors),
        resource_offsets=graph.resource_offsets,
        resources=graph.resources,
        link_offsets=graph.link_offsets,
        links=graph.links,
        link_task=row_of_each(graph.link_offsets),
        link_bytes_per_s=graph.link_bytes_per_s,
    )


def new_run(graph: TaskGraph, work: GraphArrays) -> tuple[State, int]:
    """Run the work of a graph; what came of it, and the number of tasks that ended."""
    from trainyard.engine import core, state

    waiting = np.diff(graph.predecessor_offsets)
    run_state = state.new_state(work, waiting, len(graph.resource_names), core.NUM_COUNTS)
    return run_state, core.run(work, run_state)


def check_all_ended(graph: TaskGraph, run_state: State, num_done: int) -> None:
    """Refuse a run that came to a standstill.

    Raises
    ------
    DeadlockError
        If tasks wait for each other in a circle; names up to five of them and what they wait for.
    """
    if num_done < graph.num_tasks:
        raise DeadlockError(_explain(graph, run_state.num_waiting))


def load() -> None:
    """Load Numba and the compiled loop now, which takes a second, and not with the first graph."""
    simulate(TaskGraphBuilder().build())


def _explain(graph: TaskGraph, num_waiting: Ints) -> str:
    """Say which tasks wait for each other, in the words of the graph."""
    stuck = np.flatnonzero(num_waiting > 0)
    # Every stuck task waits for a stuck one, so going from one to the next must come back to a task seen
    # before.
    path: list[int] = []
    place: dict[int, int] = {}
    task = int(stuck[0])
    while task not in place:
        place[task] = len(path)
        path.append(task)
        task = next(int(p) for p in graph.predecessors_of(task) if num_waiting[p] > 0)
    circle = path[place[task] :]
    lines = []
    for waiting in circle[:_MAX_NAMED]:
        causes = [graph.name_of(int(p)) for p in graph.predecessors_of(waiting) if num_waiting[p] > 0]
        more = f" and {len(causes) - 3} more" if len(causes) > 3 else ""
        lines.append(f"  {graph.name_of(waiting)} waits for {', '.join(causes[:3])}{more}")
    shown = f"; the first {_MAX_NAMED} of them" if len(circle) > _MAX_NAMED else ""
    return (
        f"{len(stuck)} of {graph.num_tasks} tasks can never start: {len(circle)} wait for each other in a "
        f"circle{shown}:\n" + "\n".join(lines) + "\nRemove one of these dependencies."
    )
