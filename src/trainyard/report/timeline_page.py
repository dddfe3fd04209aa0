"""One self-contained HTML page about a timeline: who does what when, memory, and where the time goes."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from trainyard.engine.timeline import Timeline
from trainyard.report.colors import color_of, series_color
from trainyard.report.page import Figure, Table, html_page, nice, zipped
from trainyard.report.timeline_bars import Bars, gantt_bars, thin_curve, used_resources, visible_curve
from trainyard.report.units import count_text

_MAX_BARS = 20_000
_MAX_ROWS = 96
# Of the time in which a resource is busy, for it to have a row: less is not even a pixel.
_LEAST_SHARE = 0.001
_MAX_DEVICES = 32
_MAX_CURVE_POINTS = 2_000
# Times of tasks are whole numbers of 32 bits.
_LARGEST = 2**32 - 1


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
    devices = len(timeline.graph.devices)
    first = f"The first {_MAX_DEVICES} of {devices} devices." if devices > _MAX_DEVICES else ""
    figures = (
        Figure("Where the time goes", **_breakdown_figure(timeline, unit, per_s), note=first),
        tasks_figure(timeline),
        Figure("Memory in use", **_memory_figure(timeline, unit, per_s), note=first),
    )
    return html_page(title, summary, [*figures, *tables], interactive=True)


def _time_unit(makespan_s: float) -> tuple[str, float]:
    for unit, per_s in (("s", 1.0), ("ms", 1e3), ("µs", 1e6)):
        if makespan_s * per_s >= 1.0:
            return unit, per_s
    return "µs", 1e6


def _what_is_drawn(timeline: Timeline, num_rows: int, bars: Bars) -> str:
    graph = timeline.graph
    said = [
        "Where tasks are narrower than a pixel, each colour has as many pixels as it has time. Drag over a part to "
        "see it larger."
    ]
    if num_hidden := len(used_resources(timeline)) - num_rows:
        resources = count_text(num_hidden, "resource")
        said.append(f"{resources} with work for less than 0.1 % of the time: no row.")
    if num_rows > _MAX_ROWS:
        said.append(f"The first {_MAX_ROWS} of {num_rows} resources.")
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


def tasks_figure(timeline: Timeline) -> Figure:
    """A row for each resource that is used; the script draws its tasks, each of which has the colour of its category."""
    unit, per_s = _time_unit(timeline.makespan_s)
    graph, used = timeline.graph, used_resources(timeline, _LEAST_SHARE)
    resources = used[:_MAX_ROWS]
    bars = gantt_bars(timeline, resources, _MAX_BARS)
    present, category = np.unique(bars.category, return_inverse=True)
    names = [graph.category_names[index] for index in present]
    colors = [color_of(name) for name in names]
    legend = [
        {"type": "bar", "name": _in_words(name), "x": [None], "y": [None], "marker": {"color": color}}
        for name, color in zip(names, colors, strict=True)
    ]
    texts = [
        graph.name_of(int(task)) if count == 1 else f"{count} tasks, first {graph.name_of(int(task))}"
        for task, count in zip(bars.task, bars.num_tasks, strict=True)
    ]
    step_s = timeline.makespan_s / _LARGEST if timeline.makespan_s > 0 else 1.0
    ends = np.round((bars.start_s + bars.length_s) / step_s)
    starts = np.round(bars.start_s / step_s)
    packed = {
        "num_tasks": len(bars),
        "num_rows": len(resources),
        "columns": zipped(np.stack([bars.row, category, starts, ends - starts]).astype("<u4").tobytes()),
        "labels": zipped(json.dumps([html.escape(text) for text in texts]).encode()),
        "colors": colors,
        "step": step_s * per_s,
        "unit": unit,
    }
    layout = _layout(timeline, unit, per_s, [_row_name(timeline, int(r)) for r in resources])
    layout["barmode"] = "overlay"
    layout["legend"] |= {"itemclick": False, "itemdoubleclick": False}
    return Figure(
        "Timeline", legend, layout, _what_is_drawn(timeline, len(used), bars), "timeline.js", packed
    )


def _in_words(category: str) -> str:
    return html.escape(category.replace("_", " "))


def _row_name(timeline: Timeline, resource: int) -> str:
    graph = timeline.graph
    name, device = graph.resource_names[resource], int(graph.resource_device[resource])
    if device < 0 or graph.devices[device] in name:
        return name
    # "pipeline rank 0" and "rank 0 compute" have a part in common.
    common = next(size for size in range(len(name), -1, -1) if graph.devices[device].endswith(name[:size]))
    return f"{graph.devices[device]} {name[common:].strip()}"


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
                    "name": _in_words(name),
                    "y": list(range(len(parts))),
                    "x": _rounded(np.array(seconds) * per_s),
                    "customdata": _rounded(np.array(share)),
                    "hovertemplate": f"%{{x:.5g}} {unit}, %{{customdata:.1f}} % of the time",
                    "marker": marker,
                }
            )

    for name in graph.category_names:
        add(name, [p.computing_s.get(name, 0.0) for p in parts], {"color": color_of(name)})
    for name in graph.category_names:
        pattern = {
            "shape": "/",
            "fgcolor": "theme:paper",
            "size": 6,
            "solidity": 0.3,
            "bgcolor": color_of(name),
        }
        add(f"exposed {name}", [p.exposed_s.get(name, 0.0) for p in parts], {"pattern": pattern})
    add("bubble", [p.bubble_s for p in parts], {"color": color_of("bubble")})
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
                "line": {"shape": "hv", "width": 1.5, "color": series_color(device)},
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
        "showgrid": False,
    }
    return {
        "height": 130 + max(70, 24 * num_rows),
        "margin": {"l": 130, "r": 20, "t": 10, "b": 45},
        "bargap": 0.2,
        "showlegend": True,
        "legend": {"orientation": "h", "y": 1.0, "yanchor": "bottom", "x": 0},
        "xaxis": {"title": {"text": f"time ({unit})"}, "range": [0, timeline.makespan_s * per_s]},
        "yaxis": rows,
    }


def _rounded(values: np.ndarray[Any, Any]) -> list[float]:
    """Plain numbers of seven digits: twice as many would only make the page larger."""
    return [nice(value) for value in values.tolist()]
