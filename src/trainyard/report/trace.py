"""A timeline as a trace that Perfetto and chrome://tracing open."""

from __future__ import annotations

from typing import Any

import numpy as np

from trainyard.engine.csr import row_of_each
from trainyard.engine.timeline import Timeline

_US_PER_S = 1e6


def chrome_trace(timeline: Timeline) -> dict[str, Any]:
    """Write a timeline in the Trace Event Format [1]_; dump the result with `json.dump`.

    A device is a process and a serial resource a thread of it; resources of no device and tasks that occupy
    no resource are in a last process, "other". Memory in use is a counter per device. An arrow goes from the
    task before to a communication task, and from a communication task to the task that waits for it, where
    the two run on different resources. A task on several resources is drawn on each.

    Parameters
    ----------
    timeline : Timeline

    Returns
    -------
    dict
        With keys "traceEvents" and "displayTimeUnit"; times in it are in microseconds, as the format wants.

    References
    ----------
    .. [1] "Trace Event Format", the Chromium project, https://docs.google.com/document/d/
       1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
    """
    events = _names(timeline)
    events += _tasks(timeline)
    events += _arrows(timeline)
    events += _memory(timeline)
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _process_of_resources(timeline: Timeline) -> list[int]:
    """Process of every resource, and of no resource as the last entry."""
    graph = timeline.graph
    other = len(graph.devices)
    return [int(d) if d >= 0 else other for d in graph.resource_device] + [other]


def _names(timeline: Timeline) -> list[dict[str, Any]]:
    graph = timeline.graph
    process = _process_of_resources(timeline)
    names = [*graph.devices, "other"]
    used = sorted({*range(len(graph.devices)), *process})
    events = [{"ph": "M", "pid": p, "name": "process_name", "args": {"name": names[p]}} for p in used]
    events += [{"ph": "M", "pid": p, "name": "process_sort_index", "args": {"sort_index": p}} for p in used]
    threads = [*graph.resource_names, "no resource"]
    events += [
        {"ph": "M", "pid": process[r], "tid": r, "name": "thread_name", "args": {"name": name}}
        for r, name in enumerate(threads)
    ]
    return events


def _tasks(timeline: Timeline) -> list[dict[str, Any]]:
    graph = timeline.graph
    process = _process_of_resources(timeline)
    none = len(graph.resource_names)
    events = []
    start_us, end_us = (timeline.start_s * _US_PER_S).tolist(), (timeline.end_s * _US_PER_S).tolist()
    for task in range(graph.num_tasks):
        category = graph.category_names[graph.category[task]]
        moved = {"num_bytes": float(graph.num_bytes[task])} if graph.num_bytes[task] else {}
        for resource in graph.resources_of(task).tolist() or [none]:
            events.append(
                {
                    "ph": "X",
                    "pid": process[resource],
                    "tid": resource,
                    "name": graph.title_of(task) or category,
                    "cat": category,
                    "ts": start_us[task],
                    "dur": end_us[task] - start_us[task],
                    "args": {"task": task, **moved},
                }
            )
    return events


def _arrows(timeline: Timeline) -> list[dict[str, Any]]:
    graph = timeline.graph
    process = _process_of_resources(timeline)
    # The first resource of every task stands for it; the entry after the last one for none.
    first = np.full(graph.num_tasks, len(graph.resource_names), np.int64)
    some = np.flatnonzero(np.diff(graph.resource_offsets))
    first[some] = graph.resources[graph.resource_offsets[some]]
    communicates = np.array([k == "communication" for k in graph.category_kinds], bool)[graph.category]
    after = row_of_each(graph.predecessor_offsets)
    before = graph.predecessors
    drawn = (communicates[before] | communicates[after]) & (first[before] != first[after])
    events = []
    for arrow, (source, target) in enumerate(zip(before[drawn].tolist(), after[drawn].tolist(), strict=True)):
        common = {"cat": "dependency", "name": "dependency", "id": arrow}
        for phase, task, time_s in (
            ("s", source, timeline.end_s[source]),
            ("f", target, timeline.start_s[target]),
        ):
            resource = int(first[task])
            place = {"pid": process[resource], "tid": resource, "ts": float(time_s) * _US_PER_S}
            events.append({"ph": phase, **place, **common, **({"bp": "e"} if phase == "f" else {})})
    return events


def _memory(timeline: Timeline) -> list[dict[str, Any]]:
    events = []
    for device in range(len(timeline.graph.devices)):
        times_s, used_bytes = timeline.memory_curve(device)
        for time_s, used in zip(times_s.tolist(), used_bytes.tolist(), strict=True):
            events.append(
                {
                    "ph": "C",
                    "pid": device,
                    "name": "memory",
                    "ts": time_s * _US_PER_S,
                    "args": {"bytes": used},
                }
            )
    return events
