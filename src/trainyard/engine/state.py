"""What the compiled event loop reads and writes: named arrays, allocated once per simulation.

The heaps are slices of flat arrays of task ids: all lines at resources are one array, since a task stands at
most once in each line.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from trainyard.engine.tasks import Floats, Ints


class GraphArrays(NamedTuple):
    """What is to be run: the graph, with successors instead of predecessors."""

    duration_s: Floats
    num_bytes: Floats
    release_s: Floats
    priority: Ints
    successor_offsets: Ints
    successors: Ints
    resource_offsets: Ints
    resources: Ints
    link_offsets: Ints
    links: Ints
    link_task: Ints
    link_bytes_per_s: Floats


class State(NamedTuple):
    """Everything that changes while the work runs."""

    counts: Ints
    # Per task.
    start_s: Floats
    end_s: Floats
    ready_s: Floats
    bound_by: Ints
    start_step: Ints
    end_step: Ints
    num_waiting: Ints
    phase: Ints
    # The heap of events: task ids by (event_s, id), and the place of every task in it.
    event_s: Floats
    events: Ints
    event_place: Ints
    # Stacks of tasks: that end in this step; that are ready and need no resource.
    ending: Ints
    free: Ints
    # Lines at the resources, one heap each, from line_offsets[r]; task that runs; task that ran last.
    line_offsets: Ints
    lines: Ints
    line_length: Ints
    running: Ints
    last: Ints
    touched: Ints
    is_touched: Ints
    # Flows: remaining bytes as of `as_of_s`, rate, and, per link, a doubly linked list of (task, link)
    # entries.
    remaining_bytes: Floats
    as_of_s: Floats
    bytes_per_s: Floats
    next_bytes_per_s: Floats
    flow_seen: Ints
    first_entry: Ints
    next_entry: Ints
    previous_entry: Ints
    dirty: Ints
    link_seen: Ints
    residual_bytes_per_s: Floats
    num_unfixed: Ints
    some_flows: Ints


def new_state(work: GraphArrays, num_predecessors: Ints, num_resources: int, num_counts: int) -> State:
    """Allocate the state before the first event; `num_counts` is the length of `State.counts`."""
    tasks, links, entries = len(work.duration_s), len(work.link_bytes_per_s), len(work.links)
    flows = tasks if entries else 0

    def ints(count: int, fill: int = 0) -> Ints:
        return np.full(count, fill, np.int64)

    def floats(count: int) -> Floats:
        return np.zeros(count)

    line_length = np.bincount(work.resources, minlength=num_resources).astype(np.int64)
    line_offsets = np.concatenate((np.zeros(1, np.int64), np.cumsum(line_length)))
    return State(
        counts=ints(num_counts), start_s=floats(tasks), end_s=floats(tasks), ready_s=floats(tasks),
        bound_by=ints(tasks, -1), start_step=ints(tasks), end_step=ints(tasks),
        num_waiting=num_predecessors.copy(),
        phase=ints(tasks), event_s=floats(tasks), events=ints(tasks), event_place=ints(tasks, -1),
        ending=ints(tasks), free=ints(tasks), line_offsets=line_offsets, lines=ints(len(work.resources)),
        line_length=ints(num_resources), running=ints(num_resources, -1), last=ints(num_resources, -1),
        touched=ints(num_resources), is_touched=ints(num_resources), remaining_bytes=floats(flows),
        as_of_s=floats(flows), bytes_per_s=floats(flows), next_bytes_per_s=floats(flows),
        flow_seen=ints(flows),
        first_entry=ints(links, -1), next_entry=ints(entries, -1), previous_entry=ints(entries, -1),
        dirty=ints(links), link_seen=ints(links), residual_bytes_per_s=floats(links), num_unfixed=ints(links),
        some_flows=ints(flows),
    )  # fmt: skip
