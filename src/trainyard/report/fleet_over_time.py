"""Figures of what changes over time under every policy: who waits, and what is in use, by type and by node."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainyard.fleet.records import FleetRun
from trainyard.report.axes import NUM_PARTS, TimeAxis, layout
from trainyard.report.curves import Curve, over_time
from trainyard.report.fleet_stints import DrawnRun, means_over_time
from trainyard.report.page import Figure, nice
from trainyard.report.units import duration_text

__all__ = ["in_use", "use_by_node", "use_by_type", "waiting_devices", "waiting_jobs"]

Floats = NDArray[np.float64]
# More nodes are points, not bars.
_MOST_BARS = 40


def waiting_jobs(runs: Sequence[DrawnRun], axis: TimeAxis) -> Figure:
    """Jobs that wait, before their first devices and later."""
    means = [
        _means(run.series.time_s, np.diff(run.series.num_waiting, prepend=0.0), axis) for run, *_ in runs
    ]
    return _figure("Jobs that wait", "jobs without devices", runs, means, axis)


def waiting_devices(runs: Sequence[DrawnRun], axis: TimeAxis) -> Figure:
    """Devices that the jobs that wait ask for; not of runs of which it is not known when jobs had some."""
    known = [each for each in runs if each.run.spans or not each.run.num_preemptions]
    means = [_means(*_asked_for(run), axis) for run, *_ in known]
    return _figure("Devices that waiting jobs ask for", "devices", known, means, axis)


def _asked_for(run: FleetRun) -> tuple[Floats, Floats]:
    """Return the times at which the number of devices that jobs wait for changes, and the changes."""
    asked = np.array([job.num_devices for job in run.jobs], np.float64)
    if run.spans:
        size = dict(zip(run.names, asked.tolist(), strict=True))
        spans = [span for span in run.spans if span.job in size]
        starts_s, ends_s = (np.array(each) for each in ([s.start_s for s in spans], [s.end_s for s in spans]))
        had = np.array([size[span.job] for span in spans], np.float64)
    else:
        starts_s, ends_s, had = run.first_start_s, run.finish_s, asked
    times_s = np.concatenate((run.arrival_s, starts_s, ends_s, run.finish_s))
    return times_s, np.concatenate((asked, -had, had, -asked))


def in_use(runs: Sequence[DrawnRun], axis: TimeAxis) -> Figure:
    """Devices in use, of all types."""
    means = [
        _means(run.series.time_s, np.diff(run.series.num_devices_in_use, prepend=0.0), axis)
        for run, *_ in runs
    ]
    most = max((run.cluster.num_devices for run, *_ in runs), default=0)
    return _figure("Devices in use", "devices", runs, means, axis, most)


def use_by_type(runs: Sequence[DrawnRun], axis: TimeAxis) -> tuple[Figure, ...]:
    """Devices in use of each type, of runs with several types. Runs without recorded devices are left out."""
    known = [each for each in runs if len(each.run.cluster.device_types) > 1 and each.run.spans]
    by_type = [_use_by_type(each, axis) for each in known]
    return tuple(
        _figure_of_type(
            name,
            [(each, uses[name]) for each, uses in zip(known, by_type, strict=True) if name in uses],
            axis,
        )
        for name in dict.fromkeys(name for uses in by_type for name in uses)
    )


def _use_by_type(drawn: DrawnRun, axis: TimeAxis) -> dict[str, Floats]:
    """Return mean devices in use over parts of the time, by device type."""
    cluster = drawn.run.cluster
    busy = drawn.stints.busy(axis.edges_s, cluster.type_of_node[cluster.node_of])
    return {name: busy[kind] for kind, name in enumerate(cluster.device_types)}


def _figure_of_type(name: str, uses: Sequence[tuple[DrawnRun, Floats]], axis: TimeAxis) -> Figure:
    runs = [each for each, _ in uses]
    clusters = [each.run.cluster for each in runs]
    most = max(int(cluster.devices_of_type[cluster.device_types.index(name)]) for cluster in clusters)
    return _figure(f"Devices in use, {name}", "devices", runs, [means for _, means in uses], axis, most)


def use_by_node(runs: Sequence[DrawnRun]) -> Figure:
    """The share of its devices' time in which each node is in use, from the first arrival to the last end."""
    drawn = layout("node", "in use (%)", height=320)
    drawn["yaxis"]["range"] = [0, 105]
    note = "The share of time in which jobs had a node's devices, from the first arrival to the last end."
    return Figure(
        "Use by node",
        [_by_node(each) for each in runs if each.run.spans and each.run.makespan_s > 0],
        drawn,
        note,
    )


def _by_node(shown: DrawnRun) -> dict[str, Any]:
    run, cluster = shown.run, shown.run.cluster
    edges_s = np.array([run.end_s - run.makespan_s, run.end_s])
    busy, sizes = shown.stints.busy(edges_s, cluster.node_of)[:, 0], np.bincount(cluster.node_of)
    nodes = np.flatnonzero(sizes)
    types = [
        f" ({cluster.nodes[node].device_type})" if len(cluster.device_types) > 1 else "" for node in nodes
    ]
    is_points = len(nodes) > _MOST_BARS
    return {
        **({"type": "scatter", "mode": "markers"} if is_points else {"type": "bar", "textposition": "none"}),
        "marker": {"color": shown.color, **({"size": 5} if is_points else {})},
        "name": html.escape(run.policy),
        "x": nodes.tolist(),
        "y": [nice(share) for share in (100 * busy[nodes] / sizes[nodes]).tolist()],
        "text": [html.escape(f"node {node}{kind}") for node, kind in zip(nodes, types, strict=True)],
        "hovertemplate": "%{text}: %{y:.1f} %",
    }


def _means(times_s: Floats, changes: Floats, axis: TimeAxis) -> Floats:
    found: Floats = means_over_time(times_s, changes, axis.edges_s)[0]
    return found


def _figure(
    heading: str, what: str, runs: Sequence[DrawnRun], means: Sequence[Floats], axis: TimeAxis, most: int = 0
) -> Figure:
    """A line for every run: means over equal parts of the time; no figure if no time passes.

    Parameters
    ----------
    most : that the axis has room for at least.
    """
    parts = [
        Curve(each.run.policy, each.color, axis.edges_s[:-1], own)
        for each, own in zip(runs, means, strict=True)
    ]
    return over_time(heading, what, parts, axis, duration_text(axis.end_s / NUM_PARTS), most)
