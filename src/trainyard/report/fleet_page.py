"""One self-contained HTML page about policies on the same workload: who waits how long, and what the devices do."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainyard.fleet.records import FleetRun, Span
from trainyard.report.fleet_league import by_virtual_cluster, league, ranked_runs
from trainyard.report.page import PALETTE, Figure, Table, html_page, nice

__all__ = ["fleet_page"]

_MAX_POINTS = 1_000
_MAX_BARS = 6_000
_MAX_DEVICES = 64
_UNITS = (("d", 86_400.0), ("h", 3_600.0), ("min", 60.0), ("s", 1.0))


def fleet_page(title: str, runs: Sequence[FleetRun], facts: Mapping[str, str]) -> str:
    """Draw completion times, devices in use, and what ran where under the best policy.

    Parameters
    ----------
    runs : of different policies on the same workload and site.
    facts : shown at the top, by name.
    """
    order = ranked_runs(runs)
    figures = [_completions(order), _in_use(order), *(_chart(run) for run in order[:1])]
    tables = [Table("League table", *league(order))]
    columns, rows = by_virtual_cluster(order)
    if rows:
        tables.append(Table("By virtual cluster", columns, rows))
    return html_page(title, facts, figures, tables, interactive=True)


def _unit(most_s: float) -> tuple[str, float]:
    return next(((name, size_s) for name, size_s in _UNITS if most_s >= 2 * size_s), _UNITS[-1])


def _completions(runs: Sequence[FleetRun]) -> Figure:
    """The share of jobs that are done within a time."""
    unit, size_s = _unit(max((run.percentile_s(90) for run in runs), default=0.0))
    data = []
    for color, run in zip(_colors(runs), runs, strict=True):
        times = np.sort(run.completion_s)
        places = _thinned(len(times))
        shares = (places + 1) / max(1, len(times))
        data.append(_line(run.policy, times[places] / size_s, shares, color))
    layout = _layout(f"completion time, arrival to end ({unit})", "share of jobs done within")
    layout["xaxis"]["type"] = "log"
    return Figure("Completion times", data, layout)


def _in_use(runs: Sequence[FleetRun]) -> Figure:
    end_s = max((run.makespan_s for run in runs), default=0.0)
    unit, size_s = _unit(end_s)
    data = []
    for color, run in zip(_colors(runs), runs, strict=True):
        times, counts = _averaged(*run.used, end_s)
        data.append(
            _line(run.policy, times / size_s, counts, color) | {"line": {"color": color, "shape": "hv"}}
        )
    most = max((run.site.num_devices for run in runs), default=0)
    layout = _layout(f"time ({unit})", "devices in use")
    layout["yaxis"]["range"] = [0, most * 1.05]
    note = f"Each point is the mean over a {_MAX_POINTS}th of the time." if end_s else ""
    return Figure("Devices in use", data, layout, note)


def _averaged(
    times: NDArray[np.float64], counts: NDArray[np.float64], end_s: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """A step function, averaged over equal parts of the time."""
    if not len(times) or end_s <= times[0]:
        return times, counts
    edges = np.linspace(times[0], end_s, _MAX_POINTS + 1)
    lengths = np.diff(np.append(times, max(end_s, times[-1])))
    before = np.concatenate(([0.0], np.cumsum(counts * lengths)))
    upto = np.interp(edges, np.append(times, max(end_s, times[-1])), before)
    return edges[:-1], np.diff(upto) / np.diff(edges)


def _chart(run: FleetRun) -> Figure:
    """What ran where: one row per device, one bar per job and stint."""
    shown = [span for span in run.spans if span.devices and span.devices[0] < _MAX_DEVICES]
    left_out = max(0, sum(len(s.devices) for s in shown) - _MAX_BARS)
    bars = [(span, device) for span in shown for device in span.devices if device < _MAX_DEVICES][:_MAX_BARS]
    unit, size_s = _unit(max((span.end_s for span, _ in bars), default=0.0))
    number = {span.job: i for i, span in enumerate(shown)}
    data = [
        {
            "type": "bar",
            "orientation": "h",
            "y": [device for _, device in bars],
            "base": [nice(span.start_s / size_s) for span, _ in bars],
            "x": [nice((span.end_s - span.start_s) / size_s) for span, _ in bars],
            "marker": {
                "color": [PALETTE[number[span.job] % len(PALETTE)] for span, _ in bars],
                "line": {"width": 0.5, "color": "white"},
            },
            "text": [_label(span) for span, _ in bars],
            "textposition": "none",
            "hovertemplate": "%{text}<extra></extra>",
        }
    ]
    layout = _layout(f"time ({unit})", "device")
    layout |= {
        "bargap": 0.05,
        "showlegend": False,
        "height": 120 + 14 * min(_MAX_DEVICES, run.site.num_devices),
    }
    layout["yaxis"]["autorange"] = "reversed"
    notes = [f"Colours tell jobs apart. Policy: {run.policy}."]
    if run.site.num_devices > _MAX_DEVICES:
        notes.append(f"The first {_MAX_DEVICES} of {run.site.num_devices} devices.")
    if left_out:
        notes.append(f"The first {_MAX_BARS} bars; {left_out} more are left out.")
    return Figure("What ran where", data if bars else [], layout, " ".join(notes))


def _label(span: Span) -> str:
    return f"job {html.escape(span.job)}, {len(span.devices)} devices, {span.start_s:.0f} s to {span.end_s:.0f} s"


def _thinned(count: int) -> NDArray[np.int64]:
    """Up to so many places of a sorted list, first and last among them."""
    return (
        np.unique(np.linspace(0, count - 1, min(count, _MAX_POINTS)).astype(np.int64))
        if count
        else np.zeros(0, int)
    )


def _colors(runs: Sequence[FleetRun]) -> list[str]:
    return [PALETTE[i % len(PALETTE)] for i in range(len(runs))]


def _line(name: str, x: NDArray[np.float64], y: NDArray[np.float64], color: str) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "lines",
        "name": html.escape(name),
        "x": [nice(v) for v in x.tolist()],
        "y": [nice(v) for v in y.tolist()],
        "line": {"color": color},
    }


def _layout(x: str, y: str) -> dict[str, Any]:
    return {
        "height": 380,
        "margin": {"l": 60, "r": 20, "t": 10, "b": 50},
        "showlegend": True,
        "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0},
        "xaxis": {"title": {"text": x}, "gridcolor": "#eee", "zeroline": False},
        "yaxis": {"title": {"text": y}, "gridcolor": "#eee", "zeroline": False, "automargin": True},
        "plot_bgcolor": "white",
        "font": {"family": "system-ui, sans-serif", "size": 13},
        "hoverlabel": {"namelength": -1},
    }
