"""Tasks per second of the event engine, next to a plain Python simulator of the same semantics.

Run `python benchmarks/engine.py`. Three graphs of a million tasks (the flows: a tenth): a 1F1B pipeline, a
random DAG on streams and blocking collectives with random priorities, and transfers that share the links of a
cluster. The plain simulator, on heapq and lists, runs the first two; that it finds the same times is checked.
It has no shared links. Seconds are processor seconds of the one thread both use.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from record import finish, parser

from trainyard.engine import TaskGraph, TaskGraphBuilder, Timeline, simulate

_REPEATS = 5


def pipeline(num_tasks: int, num_stages: int = 8) -> TaskGraph:
    """1F1B: every stage runs its forwards and backwards in the published order."""
    num_microbatches = num_tasks // (2 * num_stages)
    builder = TaskGraphBuilder()
    streams = [builder.add_resource(f"stage {stage}") for stage in range(num_stages)]
    shape = (num_stages, num_microbatches)
    on = np.repeat(streams, num_microbatches)
    forward = builder.add_tasks(np.full(on.size, 1.0), resources=on, category=builder.category("forward"))
    backward = builder.add_tasks(np.full(on.size, 2.0), resources=on, category=builder.category("backward"))
    forward, backward = forward.reshape(shape), backward.reshape(shape)
    builder.add_dependencies(forward[:-1], forward[1:])
    builder.add_dependencies(backward[1:], backward[:-1])
    builder.add_dependencies(forward[-1], backward[-1])
    for stage in range(num_stages):
        ahead = num_stages - stage
        steady = np.stack([backward[stage, :-ahead], forward[stage, ahead:]], axis=1).ravel()
        builder.chain(np.concatenate([forward[stage, :ahead], steady, backward[stage, -ahead:]]))
    return builder.build()


def random_dag(num_tasks: int, num_streams: int = 64) -> TaskGraph:
    """Two predecessors among the thousand tasks before; one task in twenty blocks four streams at once."""
    rng = np.random.default_rng(0)
    builder = TaskGraphBuilder()
    for stream in range(num_streams):
        builder.add_resource(f"stream {stream}")
    resources = np.full((num_tasks, 4), -1)
    resources[:, 0] = rng.integers(0, num_streams, num_tasks)
    gangs = rng.random(num_tasks) < 0.05
    resources[gangs, 1:] = (resources[gangs, :1] + [1, 2, 3]) % num_streams
    ids = np.arange(num_tasks)
    before = ids[:, None] - rng.integers(1, 1000, (num_tasks, 2))
    builder.add_tasks(
        rng.random(num_tasks),
        resources=resources,
        predecessors=np.where(before >= 0, before, -1),
        priority=rng.integers(0, 100, num_tasks),
    )
    return builder.build()


def transfers(num_tasks: int, num_nodes: int = 32) -> TaskGraph:
    """Transfers between random nodes over both their links; every node sends one at a time."""
    rng = np.random.default_rng(0)
    builder = TaskGraphBuilder()
    queues = np.array([builder.add_resource(f"queue {n}", kind="communication") for n in range(num_nodes)])
    up = np.array([builder.add_link(f"up {n}", 25e9) for n in range(num_nodes)])
    down = np.array([builder.add_link(f"down {n}", 25e9) for n in range(num_nodes)])
    source = rng.integers(0, num_nodes, num_tasks)
    target = (source + rng.integers(1, num_nodes, num_tasks)) % num_nodes
    builder.add_tasks(
        np.full(num_tasks, 1e-5),
        num_bytes=rng.integers(1, 1 << 24, num_tasks),
        links=np.stack([up[source], down[target]], axis=1),
        resources=queues[source],
        category=builder.category("send"),
    )
    return builder.build()


def plain_simulate(graph: TaskGraph) -> list[float]:
    """Start times by a plain Python simulator: one heap of events, one heap per resource."""
    count = graph.num_tasks
    duration, priority = graph.duration_s.tolist(), graph.priority.tolist()
    resources = [graph.resources_of(task).tolist() for task in range(count)]
    successors: list[list[int]] = [[] for _ in range(count)]
    waiting = np.diff(graph.predecessor_offsets).tolist()
    for task in range(count):
        for before in graph.predecessors_of(task).tolist():
            successors[before].append(task)
    lines: list[list[tuple[int, float, int]]] = [[] for _ in graph.resource_names]
    is_busy = [False] * len(lines)
    start = [0.0] * count
    events: list[tuple[float, int]] = []

    def make_ready(task: int, now: float) -> list[int]:
        mine: list[int] = resources[task]
        for resource in mine:
            heapq.heappush(lines[resource], (priority[task], now, task))
        return mine

    def start_first(touched: set[int], now: float) -> None:
        for resource in touched:
            if is_busy[resource] or not lines[resource]:
                continue
            task = lines[resource][0][2]
            mine = resources[task]
            if all(not is_busy[r] and lines[r][0][2] == task for r in mine):
                for r in mine:
                    heapq.heappop(lines[r])
                    is_busy[r] = True
                start[task] = now
                heapq.heappush(events, (now + duration[task], task))

    touched: set[int] = set()
    for task in range(count):
        if waiting[task] == 0:
            touched.update(make_ready(task, 0.0))
    start_first(touched, 0.0)
    while events:
        now = events[0][0]
        touched = set()
        while events and events[0][0] == now:
            _, task = heapq.heappop(events)
            for resource in resources[task]:
                is_busy[resource] = False
            touched.update(resources[task])
            for successor in successors[task]:
                waiting[successor] -= 1
                if waiting[successor] == 0:
                    touched.update(make_ready(successor, now))
        start_first(touched, now)
    return start


def measure(make: Callable[[int], TaskGraph], num_tasks: int, with_plain: bool) -> dict[str, Any]:
    """Best of several runs of the engine, and one of the plain simulator."""
    began = time.process_time()
    graph = make(num_tasks)
    build_s = time.process_time() - began
    best_s, timeline = _best(lambda: simulate(graph))
    result: dict[str, Any] = {
        "num_tasks": graph.num_tasks,
        "num_dependencies": len(graph.predecessors),
        "build_s": build_s,
        "simulate_s": best_s,
        "tasks_per_s": graph.num_tasks / best_s,
        "makespan_s": timeline.makespan_s,
    }
    if with_plain:
        began = time.process_time()
        start = plain_simulate(graph)
        plain_s = time.process_time() - began
        if start != timeline.start_s.tolist():
            raise AssertionError("the plain simulator and the engine disagree")
        result |= {
            "plain_s": plain_s,
            "plain_tasks_per_s": graph.num_tasks / plain_s,
            "speedup": plain_s / best_s,
        }
    return result


def _best(run: Callable[[], Timeline]) -> tuple[float, Timeline]:
    seconds = []
    for _ in range(_REPEATS):
        began = time.process_time()
        timeline = run()
        seconds.append(time.process_time() - began)
    return min(seconds), timeline


def main() -> None:
    """Measure, print and record."""
    smallest = parser(__doc__).parse_args().smallest
    num_tasks = 2_000 if smallest else 1_000_000
    simulate(pipeline(1000))
    results = {
        "pipeline_1f1b": measure(pipeline, num_tasks, with_plain=True),
        "random_dag": measure(random_dag, num_tasks, with_plain=True),
        "transfers": measure(transfers, num_tasks // 10, with_plain=False),
    }
    for name, result in results.items():
        plain = f", {result['speedup']:.0f} times the plain simulator" if "speedup" in result else ""
        print(f"{name}: {result['tasks_per_s']:,.0f} tasks/s of {result['num_tasks']:,}{plain}")
    finish("engine", results, smallest)


if __name__ == "__main__":
    main()
