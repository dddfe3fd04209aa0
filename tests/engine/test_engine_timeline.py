"""What a timeline says of memory, busy time, exposed communication and bubbles, counted second by second."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainyard.engine import TaskGraphBuilder, Timeline, simulate

NAMES = ("forward", "backward", "all_reduce", "send", "other")


@st.composite
def timelines(draw: st.DrawFn) -> Timeline:
    """Two devices with a compute and a communication stream; whole seconds."""
    builder = TaskGraphBuilder()
    for device in range(2):
        builder.add_device(f"gpu {device}", base_bytes=100 * device)
        builder.add_resource(f"compute {device}", device, "compute")
        builder.add_resource(f"network {device}", device, "communication")
    for name in NAMES:
        builder.category(name)
    small = st.integers(-5, 5)
    for _ in range(draw(st.integers(1, 12))):
        builder.add_task(
            draw(st.integers(0, 4)),
            resources=sorted(draw(st.sets(st.integers(0, 3), max_size=3))),
            release_s=draw(st.integers(0, 8)),
            category=draw(st.sampled_from(NAMES)),
            memory=draw(st.lists(st.tuples(st.integers(0, 1), small, small), max_size=2)),
        )
    return simulate(builder.build())


@settings(max_examples=100)
@given(timelines())
def test_breakdown_second_by_second(timeline: Timeline) -> None:
    graph = timeline.graph
    breakdowns = timeline.breakdowns()
    assert len(breakdowns) == 2
    for device, breakdown in enumerate(breakdowns):
        computing = dict.fromkeys(NAMES, 0)
        exposed = dict.fromkeys(NAMES, 0)
        for second in range(int(timeline.makespan_s)):
            running = [
                (r % 2 == 0, graph.category_names[graph.category[i]])
                for i in range(graph.num_tasks)
                for r in graph.resources_of(i)
                if r // 2 == device and timeline.start_s[i] <= second < timeline.end_s[i]
            ]
            computes = [
                name for on_compute, name in running if on_compute and name not in ("all_reduce", "send")
            ]
            communicates = [name for _, name in running if name in ("all_reduce", "send")]
            if computes:
                computing[min(computes, key=NAMES.index)] += 1
            elif communicates:
                exposed[min(communicates, key=NAMES.index)] += 1
        assert breakdown.computing_s == {name: s for name, s in computing.items() if s}
        assert breakdown.exposed_s == {name: s for name, s in exposed.items() if s}
        assert breakdown.bubble_s == timeline.makespan_s - sum(computing.values()) - sum(exposed.values())
        assert timeline.breakdown(device) == breakdown


@settings(max_examples=100)
@given(timelines())
def test_memory_curve_step_by_step(timeline: Timeline) -> None:
    graph = timeline.graph
    last = int(max(timeline.start_step.max(), timeline.end_step.max()))
    for device in range(2):
        level = peak = int(graph.device_base_bytes[device])
        for step in range(last + 1):
            for task, where, at_start, at_end in zip(
                graph.memory_task,
                graph.memory_device,
                graph.memory_start_bytes,
                graph.memory_end_bytes,
                strict=True,
            ):
                if where == device:
                    level += int(at_start) * (timeline.start_step[task] == step)
                    level += int(at_end) * (timeline.end_step[task] == step)
            peak = max(peak, level)
        times_s, used_bytes = timeline.memory_curve(device)
        assert timeline.peak_bytes(device) == peak
        assert used_bytes[-1] == level
        assert np.all(np.diff(times_s) >= 0)
        assert times_s[0] == 0


def test_busy_seconds_of_resources() -> None:
    builder = TaskGraphBuilder()
    first, second = builder.add_resource("a"), builder.add_resource("b")
    builder.add_task(2.0, resources=first, category="forward")
    builder.add_task(3.0, resources=[first, second], category="backward")
    builder.add_task(0.5, resources=second, category="forward")
    busy_s = simulate(builder.build()).busy_s()
    assert busy_s.tolist() == [[2.0, 3.0], [0.5, 3.0]]


def test_memory_freed_at_an_end_is_free_for_a_start_at_that_instant() -> None:
    builder = TaskGraphBuilder()
    device = builder.add_device("gpu", base_bytes=7)
    stream = builder.add_resource("compute", device)
    for _ in range(3):
        builder.add_task(1.0, resources=stream, memory=[(device, 10, -10)])
    timeline = simulate(builder.build())
    assert timeline.peak_bytes(device) == 17
    times_s, used_bytes = timeline.memory_curve(device)
    assert times_s.tolist() == [0, 0, 1, 1, 2, 2, 3]
    assert used_bytes.tolist() == [7, 17, 7, 17, 7, 17, 7]


def test_the_peak_inside_one_instant_is_seen() -> None:
    builder = TaskGraphBuilder()
    device = builder.add_device("gpu")
    builder.add_task(0.0, resources=builder.add_resource("compute", device), memory=[(device, 9, -9)])
    assert simulate(builder.build()).peak_bytes(device) == 9


def test_overlapped_communication_is_not_exposed() -> None:
    builder = TaskGraphBuilder()
    device = builder.add_device("gpu")
    compute = builder.add_resource("compute", device)
    network = builder.add_resource("network", device, "communication")
    wire = builder.add_link("wire", 10.0)
    forward = builder.add_task(1.0, resources=compute, category="forward")
    builder.add_task(3.0, resources=compute, predecessors=[forward], category="backward")
    builder.add_task(
        num_bytes=50, links=[wire], resources=network, predecessors=[forward], category="all_reduce"
    )
    breakdown = simulate(builder.build()).breakdown(device)
    assert breakdown.computing_s == {"forward": 1.0, "backward": 3.0}
    assert breakdown.exposed_s == pytest.approx({"all_reduce": 2.0})
    assert breakdown.bubble_s == 0
