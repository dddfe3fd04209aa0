"""Traces hold every task, name and byte of the timeline, and are JSON."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from report_timelines import small_timeline

from trainyard.report.trace import chrome_trace


def test_every_task_is_on_its_resource_in_microseconds() -> None:
    timeline = small_timeline()
    graph = timeline.graph
    trace = json.loads(json.dumps(chrome_trace(timeline), allow_nan=False))
    tasks = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    assert sorted(event["args"]["task"] for event in tasks) == list(range(graph.num_tasks))
    for event in tasks:
        task = event["args"]["task"]
        assert event["tid"] == graph.resources_of(task)[0]
        assert event["pid"] == (graph.resource_device[event["tid"]] if event["tid"] < 4 else 2)
        assert event["ts"] == pytest.approx(timeline.start_s[task] * 1e6)
        assert event["ts"] + event["dur"] == pytest.approx(timeline.end_s[task] * 1e6)
        assert event["cat"] == graph.category_names[graph.category[task]]


def test_processes_and_threads_are_named() -> None:
    events = chrome_trace(small_timeline())["traceEvents"]
    processes = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert processes == {0: "gpu 0", 1: "gpu 1", 2: "other"}
    threads = {e["tid"]: (e["pid"], e["args"]["name"]) for e in events if e["name"] == "thread_name"}
    assert threads[1] == (1, "compute")
    assert threads[4] == (2, "host")


def test_memory_is_a_counter_that_follows_the_curve() -> None:
    timeline = small_timeline()
    counters = [e for e in chrome_trace(timeline)["traceEvents"] if e["ph"] == "C" and e["pid"] == 1]
    times_s, used_bytes = timeline.memory_curve(1)
    assert [e["args"]["bytes"] for e in counters] == used_bytes.tolist()
    assert [e["ts"] for e in counters] == pytest.approx((times_s * 1e6).tolist())


def test_arrows_lead_into_and_out_of_communication() -> None:
    timeline = small_timeline()
    events = chrome_trace(timeline)["traceEvents"]
    starts = {e["id"]: e for e in events if e["ph"] == "s"}
    ends = {e["id"]: e for e in events if e["ph"] == "f"}
    assert starts.keys() == ends.keys()
    # Three sends each leave both devices; only those of the first one are waited for.
    assert len(starts) == 9
    pairs = Counter((starts[i]["tid"], ends[i]["tid"]) for i in starts)
    assert pairs == {(0, 2): 3, (1, 3): 3, (2, 1): 3}
    assert all(starts[i]["ts"] <= ends[i]["ts"] for i in starts)
