"""The compiled event loop against a slow simulator that is right at sight."""

from __future__ import annotations

import subprocess
import sys
from itertools import pairwise

import numpy as np
import pytest
from engine_reference import Task, reference_simulate
from hypothesis import given, settings
from hypothesis import strategies as st

from trainyard.engine import DeadlockError, TaskGraph, TaskGraphBuilder, simulate


def build(tasks: list[Task], num_resources: int, capacity: list[int] | None = None) -> TaskGraph:
    builder = TaskGraphBuilder()
    for index in range(num_resources):
        builder.add_resource(f"resource {index}")
    for index, each in enumerate(capacity or []):
        builder.add_link(f"link {index}", each)
    for task in tasks:
        builder.add_task(
            float(task.duration_s),
            resources=task.resources,
            predecessors=task.predecessors,
            num_bytes=task.num_bytes,
            links=task.links,
            release_s=float(task.release_s),
            priority=task.priority,
        )
    return builder.build()


@st.composite
def serial_tasks(draw: st.DrawFn, num_resources: int = 3, distinct_priorities: bool = False) -> list[Task]:
    count = draw(st.integers(1, 14))
    priorities = draw(st.permutations(range(count))) if distinct_priorities else None
    tasks = []
    for index in range(count):
        tasks.append(
            Task(
                duration_s=draw(st.integers(0, 4)),
                predecessors=sorted(draw(st.sets(st.integers(0, index - 1), max_size=3))) if index else [],
                resources=sorted(draw(st.sets(st.integers(0, num_resources - 1)))),
                release_s=draw(st.sampled_from([0, 0, 0, 1, 3, 6])),
                priority=priorities[index] if priorities else draw(st.integers(0, 2)),
            )
        )
    return tasks


@st.composite
def flow_tasks(draw: st.DrawFn, num_links: int = 4) -> list[Task]:
    tasks = []
    for index in range(draw(st.integers(1, 10))):
        num_bytes = draw(st.integers(0, 12))
        tasks.append(
            Task(
                duration_s=draw(st.integers(0, 2)),
                predecessors=sorted(draw(st.sets(st.integers(0, index - 1), max_size=2))) if index else [],
                num_bytes=num_bytes,
                links=sorted(draw(st.sets(st.integers(0, num_links - 1), min_size=1 if num_bytes else 0))),
                release_s=draw(st.integers(0, 5)),
            )
        )
    return tasks


@settings(max_examples=100)
@given(serial_tasks())
def test_serial_and_gang_tasks_as_the_reference(tasks: list[Task]) -> None:
    timeline = simulate(build(tasks, 3))
    start, end = reference_simulate(tasks)
    assert timeline.start_s.tolist() == [float(t) for t in start]
    assert timeline.end_s.tolist() == [float(t) for t in end]


@settings(max_examples=100)
@given(flow_tasks(), st.lists(st.integers(1, 7), min_size=4, max_size=4))
def test_shared_links_as_the_reference(tasks: list[Task], capacity: list[int]) -> None:
    timeline = simulate(build(tasks, 0, capacity))
    start, end = reference_simulate(tasks, capacity)
    np.testing.assert_allclose(timeline.start_s, [float(t) for t in start], rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(timeline.end_s, [float(t) for t in end], rtol=1e-9, atol=1e-9)


@settings(max_examples=100)
@given(serial_tasks(), st.lists(st.integers(1, 4), min_size=3, max_size=3), st.data())
def test_flows_on_serial_resources_overlap_nowhere(
    tasks: list[Task], capacity: list[int], data: st.DataObject
) -> None:
    for task in tasks:
        task.links = sorted(data.draw(st.sets(st.integers(0, 2))))
        task.num_bytes = data.draw(st.integers(0, 9)) if task.links else 0
    graph = build(tasks, 3, capacity)
    timeline = simulate(graph)
    for resource in range(3):
        mine = [i for i, task in enumerate(tasks) if resource in task.resources]
        spans = sorted((timeline.start_step[i], timeline.end_step[i]) for i in mine)
        assert all(before[1] < after[0] for before, after in pairwise(spans))
    for index, task in enumerate(tasks):
        assert all(timeline.end_s[p] <= timeline.start_s[index] for p in task.predecessors)
        fastest = min((capacity[link] for link in task.links), default=1)
        alone = task.duration_s + task.num_bytes / fastest
        assert timeline.end_s[index] - timeline.start_s[index] >= alone * (1 - 1e-9)


@settings(max_examples=100)
@given(serial_tasks(distinct_priorities=True), st.data())
def test_order_of_adding_does_not_matter_under_distinct_priorities(
    tasks: list[Task], data: st.DataObject
) -> None:
    order = data.draw(st.permutations(range(len(tasks))))
    place = {old: new for new, old in enumerate(order)}
    moved = [
        Task(t.duration_s, [place[p] for p in t.predecessors], t.resources, 0, [], t.release_s, t.priority)
        for t in (tasks[old] for old in order)
    ]
    first, second = simulate(build(tasks, 3)), simulate(build(moved, 3))
    assert first.start_s[list(order)].tolist() == second.start_s.tolist()
    assert first.start_step[list(order)].tolist() == second.start_step.tolist()


@settings(max_examples=100)
@given(serial_tasks())
def test_critical_path_is_as_long_as_the_makespan(tasks: list[Task]) -> None:
    timeline = simulate(build(tasks, 3))
    path = timeline.critical_path()
    assert path[-1].end_s == timeline.makespan_s
    assert path[0].because == "release"
    assert path[0].start_s == tasks[path[0].task].release_s
    for before, after in pairwise(path):
        assert before.end_s == after.start_s
        if after.because == "predecessor":
            assert before.task in tasks[after.task].predecessors
        else:
            assert set(tasks[before.task].resources) & set(tasks[after.task].resources)


def test_the_same_graph_gives_the_same_bits() -> None:
    rng = np.random.default_rng(5)
    builder = TaskGraphBuilder()
    resources = [builder.add_resource(f"r{i}") for i in range(4)]
    links = [builder.add_link(f"l{i}", 3.0 + i) for i in range(6)]
    chosen = np.stack([rng.permutation(6)[:2] for _ in range(400)])
    ids = builder.add_tasks(
        rng.random(400),
        resources=rng.choice(resources, 400),
        num_bytes=rng.random(400),
        links=np.array(links)[chosen],
    )
    builder.add_dependencies(ids[:-7], ids[7:])
    graph = builder.build()
    first, second = simulate(graph), simulate(graph)
    assert first.start_s.tobytes() == second.start_s.tobytes()
    assert first.end_s.tobytes() == second.end_s.tobytes()
    assert first.bound_by.tobytes() == second.bound_by.tobytes()


def test_flows_that_differ_by_a_rounding_end_together() -> None:
    builder = TaskGraphBuilder()
    stream = builder.add_resource("stream")
    # 0.3 / 0.1 is less than 3 in floating point, by one unit in the last place.
    first = builder.add_task(num_bytes=0.3, links=[builder.add_link("slow", 0.1)])
    second = builder.add_task(num_bytes=3.0, links=[builder.add_link("fast", 1.0)])
    later = builder.add_task(1.0, resources=stream, predecessors=[first], priority=1)
    sooner = builder.add_task(1.0, resources=stream, predecessors=[second], priority=0)
    timeline = simulate(builder.build())
    assert timeline.end_s[first] == timeline.end_s[second] == pytest.approx(3.0)
    assert timeline.start_s[sooner] < timeline.start_s[later]


def test_a_gang_first_in_line_keeps_its_free_resources() -> None:
    tasks = [
        Task(duration_s=5, resources=[0]),
        Task(duration_s=1, resources=[0, 1], priority=0, release_s=1),
        Task(duration_s=1, resources=[1], priority=1, release_s=2),
        Task(duration_s=1, resources=[1], priority=-1, release_s=3),
    ]
    timeline = simulate(build(tasks, 2))
    # Task 2 waits behind the gang, task 3 goes before it: it is more urgent and its resource is idle.
    assert timeline.start_s.tolist() == [0, 5, 6, 3]


def test_gangs_that_cross_do_not_deadlock() -> None:
    tasks = [Task(duration_s=1, resources=[i % 3, (i + 1) % 3]) for i in range(9)]
    assert simulate(build(tasks, 3)).makespan_s == 9


def test_nothing_to_do() -> None:
    timeline = simulate(TaskGraphBuilder().build())
    assert timeline.makespan_s == 0
    assert timeline.critical_path() == ()


def test_a_circle_is_named() -> None:
    builder = TaskGraphBuilder()
    first = builder.add_task(1.0, label="free")
    ring = [builder.add_task(1.0, label=f"ring{i}", predecessors=[first]) for i in range(8)]
    builder.chain([*ring, ring[0]])
    builder.add_task(1.0, label="behind", predecessors=[ring[3]])
    with pytest.raises(DeadlockError) as caught:
        simulate(builder.build())
    message = str(caught.value)
    assert "9 of 10 tasks can never start: 8 wait for each other" in message
    assert "the first 5 of them" in message
    assert "ring0 (task 1) waits for ring7 (task 8)" in message
    assert message.count("waits for") == 5
    assert "behind" not in message


def test_a_task_that_waits_for_itself_is_named() -> None:
    builder = TaskGraphBuilder()
    builder.add_task(1.0, label="alone", predecessors=[0])
    with pytest.raises(DeadlockError, match=r"alone \(task 0\) waits for alone \(task 0\)"):
        simulate(builder.build())


def test_importing_the_engine_does_not_import_the_compiler() -> None:
    code = "import sys, trainyard.engine; print({'numba', 'torch', 'plotly'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
