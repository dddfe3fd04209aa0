"""One self-contained HTML page about a timeline: who does what when, memory, and where the time goes."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from trainyard.engine.tasks import Ints
from trainyard.engine.timeline import Timeline
from trainyard.report.page import Figure, Table, html_page, nice
from trainyard.report.timeline_bars import Bars, gantt_bars, shown_resources, thin_curve, visible_curve

_MAX_BARS = 20_000
_MAX_ROWS = 96
_MAX_DEVICES = 32
_MAX_CURVE_POINTS = 2_000

_COLORS = {
    "forward": "#4c78a8",
    "backward": "#f58518",
    "weight_gradient": "#e45756",
    "recompute": "#eeca3b",
    "optimizer": "#72b7b2",
    "encode": "#9d755d",
    "all_reduce": "#54a24b",
    "all_gather": "#88d27a",
    "reduce_scatter": "#2f6f3e",
    "all_to_all": "#b279a2",
    "broadcast": "#d6a5c9",
    "send": "#439894",
    "swap_out": "#ff9da6",
    "swap_in": "#d67195",
    "other": "#8c8c8c",
}
_MORE_COLORS = ("#1b9e77", "#7570b3", "#a6761d", "#66a61e", "#e7298a", "#666666")
_BUBBLE_COLOR = "#ececec"


def timeline_page(
    timeline: Timeline, title: str, summary: Mapping[str, str], tables: Sequence[Table] = ()
) -> str:
    """Draw a timeline as an HTML page that needs nothing else, no network either.

    Parameters
    ----------
    timeline : Timeline
    title : str
    summary : mapping from name to text
        Shown at the top.
    tables : sequence of Table
        Shown at the end.

    Returns
    -------
    str
        The page. Timelines of any size make a page that a browser can handle: short tasks are drawn together
        and resources and devices beyond the first are left out, and the page says so.
    """
    unit, per_s = _time_unit(timeline.makespan_s)
    resources = shown_resources(timeline.graph, _MAX_ROWS)
    bars = gantt_bars(timeline, resources, _MAX_BARS)
    devices = len(timeline.graph.devices)
    first = f"The first {_MAX_DEVICES} of {devices} devices." if devices > _MAX_DEVICES else ""
    drawn = (
        ("Where the time goes", first, _breakdown_figure(timeline, unit, per_s)),
        ("Timeline", _what_is_drawn(timeline, bars), _gantt_figure(timeline, resources, bars, unit, per_s)),
        ("Memory in use", first, _memory_figure(timeline, unit, per_s)),
    )
    figures = [Figure(heading, figure["data"], figure["layout"], note) for heading, note, figure in drawn]
    return html_page(title, summary, [*figures, *tables], interactive=True)


def _time_unit(makespan_s: float) -> tuple[str, float]:
    for unit, per_s in (("s", 1.0), ("ms", 1e3), ("µs", 1e6)):
        if makespan_s * per_s >= 1.0:
            return unit, per_s
    return "µs", 1e6


def _color(names: Sequence[str], index: int) -> str:
    name = names[index]
    return _COLORS.get(name, _MORE_COLORS[index % len(_MORE_COLORS)])


def _what_is_drawn(timeline: Timeline, bars: Bars) -> str:
    graph = timeline.graph
    said = []
    if len(graph.resource_names) > _MAX_ROWS:
        said.append(f"The first {_MAX_ROWS} of {len(graph.resource_names)} resources.")
    together = int(bars.num_tasks[bars.num_tasks > 1].sum())
    if together:
        said.append(
            f"{len(bars):,} bars: {together:,} short tasks are drawn together, by category; such a bar is as "
            "long as its tasks are together, and begins with the first of them."
        )
    no_resource = np.diff(graph.resource_offsets) == 0
    unseen = int(np.sum(no_resource & (timeline.end_s > timeline.start_s)))
    if unseen:
        said.append(f"{unseen:,} tasks that occupy no resource are not drawn.")
    return " ".join(said)


def _gantt_figure(timeline: Timeline, resources: Ints, bars: Bars, unit: str, per_s: float) -> dict[str, Any]:
    graph = timeline.graph
    data = []
    for index, name in enumerate(graph.category_names):
        mine = np.flatnonzero(bars.category == index)
        if not len(mine):
            continue
        texts = [
            graph.name_of(int(task)) if count == 1 else f"{count} tasks, first {graph.name_of(int(task))}"
            for task, count in zip(bars.task[mine], bars.num_tasks[mine], strict=True)
        ]
        data.append(
            {
                "type": "bar",
                "orientation": "h",
                "name": name,
                "y": bars.row[mine].tolist(),
                "base": _rounded(bars.start_s[mine] * per_s),
                "x": _rounded(bars.length_s[mine] * per_s),
                "width": 0.82,
                "customdata": [html.escape(text) for text in texts],
                "hovertemplate": f"%{{customdata}}<br>from %{{base:.5g}} {unit}, %{{x:.5g}} {unit}",
                "marker": {
                    "color": _color(graph.category_names, index),
                    "line": {"color": "white", "width": 0.6 if len(bars) <= 2000 else 0},
                },
            }
        )
    layout = _layout(timeline, unit, per_s, [_row_name(timeline, int(r)) for r in resources])
    layout["barmode"] = "overlay"
    return {"data": data, "layout": layout}


def _row_name(timeline: Timeline, resource: int) -> str:
    graph = timeline.graph
    name, device = graph.resource_names[resource], int(graph.resource_device[resource])
    if device < 0 or graph.devices[device] in name:
        return name
    return f"{graph.devices[device]} {name}"


def _breakdown_figure(timeline: Timeline, unit: str, per_s: float) -> dict[str, Any]:
    graph = timeline.graph
    parts = timeline.breakdowns()[:_MAX_DEVICES]
    data: list[dict[str, Any]] = []

    def add(name: str, seconds: list[float], marker: dict[str, Any]) -> None:
        if any(seconds):
            share = [
                100 * s / p.makespan_s if p.makespan_s else 0.0 for s, p in zip(seconds, parts, strict=True)
            ]
            data.append(
                {
                    "type": "bar",
                    "orientation": "h",
                    "name": name,
                    "y": list(range(len(parts))),
                    "x": _rounded(np.array(seconds) * per_s),
                    "customdata": _rounded(np.array(share)),
                    "hovertemplate": f"%{{x:.5g}} {unit}, %{{customdata:.1f}} % of the time",
                    "marker": marker,
                }
            )

    for index, name in enumerate(graph.category_names):
        add(
            name,
            [p.computing_s.get(name, 0.0) for p in parts],
            {"color": _color(graph.category_names, index)},
        )
    for index, name in enumerate(graph.category_names):
        pattern = {"shape": "/", "fgcolor": "white", "size": 6, "solidity": 0.3}
        marker = {"pattern": {**pattern, "bgcolor": _color(graph.category_names, index)}}
        add(f"exposed {name}", [p.exposed_s.get(name, 0.0) for p in parts], marker)
    add("bubble", [p.bubble_s for p in parts], {"color": _BUBBLE_COLOR})
    layout = _layout(timeline, unit, per_s, graph.devices[:_MAX_DEVICES])
    layout["barmode"] = "stack"
    layout["legend"]["traceorder"] = "normal"
    return {"data": data, "layout": layout}


def _memory_figure(timeline: Timeline, unit: str, per_s: float) -> dict[str, Any]:
    graph = timeline.graph
    curves = [timeline.memory_curve(d) for d in range(min(len(graph.devices), _MAX_DEVICES))]
    peak = max((int(used.max()) for _, used in curves), default=0)
    if peak <= 0:
        return {"data": [], "layout": {}}
    size, bytes_per = next(
        (size, scale)
        for size, scale in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10), ("B", 1))
        if peak >= scale
    )
    data = []
    for device, (times_s, used_bytes) in enumerate(curves):
        times_s, used_bytes = thin_curve(*visible_curve(times_s, used_bytes), _MAX_CURVE_POINTS)
        times_s, used_bytes = np.append(times_s, timeline.makespan_s), np.append(used_bytes, used_bytes[-1])
        data.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": html.escape(
                    f"{graph.devices[device]}, peak {curves[device][1].max() / bytes_per:.4g} {size}"
                ),
                "x": _rounded(times_s * per_s),
                "y": _rounded(used_bytes / bytes_per),
                "line": {"shape": "hv", "width": 1.5},
                "hovertemplate": f"%{{y:.4g}} {size} from %{{x:.5g}} {unit}",
            }
        )
    layout = _layout(timeline, unit, per_s, [])
    layout["height"] = 400
    if len(curves) > 8:
        layout["legend"] = {"y": 0.93}
    layout["yaxis"] = {"title": {"text": f"memory ({size})"}, "rangemode": "tozero"}
    return {"data": data, "layout": layout}


def _layout(timeline: Timeline, unit: str, per_s: float, row_names: Sequence[str]) -> dict[str, Any]:
    num_rows = len(row_names)
    rows = {
        "tickvals": list(range(num_rows)),
        "ticktext": [html.escape(name) for name in row_names],
        "range": [num_rows - 0.4, -0.6],
        "fixedrange": True,
        "automargin": True,
    }
    return {
        "height": 130 + max(70, 24 * num_rows),
        "margin": {"l": 130, "r": 20, "t": 10, "b": 45},
        "bargap": 0.2,
        "showlegend": True,
        "legend": {"orientation": "h", "y": 1.0, "yanchor": "bottom", "x": 0},
        "xaxis": {"title": {"text": f"time ({unit})"}, "range": [0, timeline.makespan_s * per_s]},
        "yaxis": rows,
        "plot_bgcolor": "white",
        "font": {"family": "system-ui, sans-serif", "size": 12},
        "hoverlabel": {"namelength": -1},
    }


def _rounded(values: np.ndarray[Any, Any]) -> list[float]:
    """Plain numbers of seven digits: twice as many would only make the page larger."""
    return [nice(value) for value in values.tolist()]
