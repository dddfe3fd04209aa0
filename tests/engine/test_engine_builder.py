"""Making task graphs: in bulk as one by one, and refusing what means nothing."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest

from trainyard.engine import TaskGraphBuilder


def builder_with_places() -> TaskGraphBuilder:
    builder = TaskGraphBuilder()
    device = builder.add_device("gpu 0", base_bytes=10)
    builder.add_resource("compute", device)
    builder.add_resource("copy", device, "copy")
    builder.add_link("a", 1e9)
    builder.add_link("b", 2e9)
    return builder


def test_bulk_adding_makes_the_same_graph() -> None:
    single, bulk = builder_with_places(), builder_with_places()
    single.add_task(1.0, resources=0, label="x", category="forward")
    single.add_task(
        2.0, resources=[0, 1], predecessors=[0], num_bytes=5, links=[1], label="x", category="forward"
    )
    single.add_task(
        3.0, predecessors=[1, 0], links=[0, 1], priority=7, category="forward", memory=[(0, 5, -3)]
    )
    ids = bulk.add_tasks(
        [1.0, 2.0, 3.0],
        resources=[[0, -1], [0, 1], [-1, -1]],
        predecessors=[[-1, -1], [-1, 0], [1, 0]],
        num_bytes=[0, 5, 0],
        links=[[-1, -1], [1, -1], [0, 1]],
        priority=[0, 0, 7],
        label=[bulk.label("x"), bulk.label("x"), 0],
        category=bulk.category("forward"),
    )
    bulk.add_memory(ids[2], 0, 5, -3)
    for field in dataclasses.fields(single.build()):
        one, other = getattr(single.build(), field.name), getattr(bulk.build(), field.name)
        assert np.array_equal(one, other), field.name
        if isinstance(one, np.ndarray):
            assert one.dtype == other.dtype
            assert not one.flags.writeable


def test_dependencies_can_come_later_and_the_builder_can_go_on() -> None:
    builder = builder_with_places()
    builder.add_task(1.0, predecessors=[1])
    builder.add_task(1.0)
    first = builder.build()
    builder.add_task(1.0, predecessors=[0])
    assert first.num_tasks == 2
    assert builder.build().predecessors_of(2).tolist() == [0]


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda b: b.add_task(-1.0), r"duration_s\[0\] is -1.0; it must be finite and not negative"),
        (lambda b: b.add_task(float("nan")), r"duration_s\[0\] is nan"),
        (lambda b: b.add_task(release_s=float("inf")), r"release_s\[0\] is inf"),
        (lambda b: b.add_link("dead", 0.0), r"link_bytes_per_s\[2\] is 0.0; it must be finite and positive"),
        (lambda b: b.add_task(resources=2), "resources: there is no resource 2; ids run from 0 to 1"),
        (lambda b: b.add_task(predecessors=[4]), "predecessors: there is no task 4; ids run from 0 to 0"),
        (lambda b: b.add_task(links=[-1]), "links: there is no link -1"),
        (lambda b: b.add_task(memory=[(3, 1, 1)]), "memory_device: there is no device 3"),
        (lambda b: b.add_dependencies(0, 0), "there is no task yet"),
        (
            lambda b: b.add_resource("r", device=1),
            "resource_device: there is no device 1; ids run from -1 to 0",
        ),
        (lambda b: b.add_task(resources=[1, 0, 1]), "task 0 names resource 'copy' twice"),
        (lambda b: b.add_task(num_bytes=3, links=[1, 1]), "task 0 names link 'b' twice"),
        (lambda b: b.add_task(num_bytes=3, label="send"), r"send \(task 0\) moves 3 bytes over no link"),
        (lambda b: b.add_task(category="forwards"), "unknown category 'forwards'.*forward, backward"),
        (lambda b: b.category("forward", "communication"), "is of kind 'compute', not 'communication'"),
        (lambda b: b.add_tasks([1.0, 2.0], priority=[1]), r"priority has shape \(1,\)"),
        (lambda b: b.add_tasks([1.0, 2.0], resources=[[1]]), r"resources has shape \(1, 1\)"),
    ],
)
def test_what_means_nothing_is_refused(spoil: Callable[[TaskGraphBuilder], object], message: str) -> None:
    builder = builder_with_places()
    with pytest.raises(ValueError, match=message):  # noqa: PT012 - some are refused at once, the others when built
        spoil(builder)
        builder.build()


def test_own_categories_have_the_kind_they_were_given() -> None:
    builder = builder_with_places()
    builder.add_task(category="forward")
    assert builder.category("gossip", "communication") == builder.category("gossip") == 1
    graph = builder.build()
    assert graph.category_names == ("forward", "gossip")
    assert graph.category_kinds == ("compute", "communication")
