"""A timer of one graph says what a simulation of it says, for any durations and orders."""

import numpy as np
import pytest

from trainyard.engine import DeadlockError, TaskGraphBuilder, core, simulate
from trainyard.engine.timer import TaskTimer

# Two stages, two microbatches: forward 0 and 1 on the first, both passes 2 to 5 on the second, backward 6 and 7.
RESOURCES = [0, 0, 1, 1, 1, 1, 0, 0]
PREDECESSORS = [-1, -1, 0, 1, 2, 3, 4, 5]


def test_a_small_pipeline_by_hand() -> None:
    timer = TaskTimer(RESOURCES, PREDECESSORS)
    # Both forward passes of the second stage before its backward passes.
    assert timer([1, 1, 1, 1, 2, 2, 2, 2]).tolist() == [1, 2, 2, 3, 5, 7, 7, 9]
    # Its first backward pass before its second forward pass: the first stage starts back earlier.
    order = [0, 1, 0, 2, 1, 3, 2, 3]
    assert timer([1, 1, 1, 1, 2, 2, 2, 2], priority=order).tolist() == [1, 2, 2, 5, 4, 7, 6, 9]
    assert timer([1, 1, 1, 1, 2, 2, 2, 2], release_s=3.0).tolist() == [4, 5, 5, 6, 8, 10, 10, 12]


def test_several_resources_and_predecessors() -> None:
    timer = TaskTimer([[0, -1], [1, -1], [0, 1]], [[-1, -1], [-1, -1], [0, 1]])
    assert timer([1.0, 3.0, 0.5]).tolist() == [1.0, 3.0, 3.5]


def test_it_agrees_with_a_simulation_and_compiles_nothing_more() -> None:
    drawn = np.random.default_rng(0)
    predecessors = np.array([drawn.integers(-1, i) if i else -1 for i in range(100)])
    resources, duration_s, priority = drawn.integers(0, 4, 100), drawn.random(100), drawn.integers(0, 9, 100)
    builder = TaskGraphBuilder()
    for resource in range(4):
        builder.add_resource(str(resource))
    builder.add_tasks(duration_s, resources=resources, predecessors=predecessors, priority=priority)
    whole = simulate(builder.build())
    compiled = len(core.run.signatures)
    assert (TaskTimer(resources, predecessors)(duration_s, priority=priority) == whole.end_s).all()
    assert len(core.run.signatures) == compiled
    duration_s[0] = 1.0  # what was given stays the caller's


def test_wrong_input_is_refused() -> None:
    timer = TaskTimer([0, 0], [-1, 0])
    with pytest.raises(ValueError, match=r"duration_s has shape \(3,\)"):
        timer([1.0, 2.0, 3.0])
    with pytest.raises(ValueError, match=r"duration_s\[1\] is -2.0"):
        timer([1.0, -2.0])
    with pytest.raises(ValueError, match="there is no task 2"):
        TaskTimer([0, 0], [-1, 2])
    with pytest.raises(DeadlockError, match="wait for each other"):
        TaskTimer([0, 0], [1, 0])([1.0, 1.0])
