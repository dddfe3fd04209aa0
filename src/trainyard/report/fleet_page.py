"""One self-contained HTML page about policies on the same workload: who waits how long, and what the devices do."""

from __future__ import annotations

import html
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainyard.fleet.records import FleetRun, Span
from trainyard.fleet.setting import CannotRun
from trainyard.fleet.workload.left_out import LeftOut
from trainyard.report.fleet_groups import Part, groups_table
from trainyard.report.fleet_league import devices_table, league, left_out_lines, ranked_runs, refusals
from trainyard.report.page import PALETTE, Figure, Table, html_page, nice
from trainyard.report.units import percent_text

__all__ = ["fleet_page"]

_MAX_POINTS = 1_000
_MAX_BARS = 6_000
_MAX_DEVICES = 64
_UNITS = (("d", 86_400.0), ("h", 3_600.0), ("min", 60.0), ("s", 1.0))


def fleet_page(
    title: str,
    runs: Sequence[FleetRun],
    facts: Mapping[str, str],
    left_out: LeftOut | None = None,
    *,
    baseline: FleetRun | None = None,
    cannot: Sequence[CannotRun] = (),
    parts: Sequence[Part] = (),
) -> str:
    """Draw how long jobs take and wait, how fair that is, devices in use, and what ran where under every policy.

    Parameters
    ----------
    runs : of different policies on the same workload and site.
    facts : shown at the top, by name.
    left_out : rows of the trace that gave no job.
    baseline : the run with which the others are compared.
    cannot : policies that cannot run.
    parts : of all runs, by group.
    """
    order = ranked_runs(runs)
    figures = [_completions(order), _waiting(order), _unfairness(order), _in_use(order)]
    number = {name: i for i, name in enumerate(dict.fromkeys(chain(*(run.names for run in order))))}
    end_s = max((span.end_s for run in order for span in run.spans), default=0.0)
    figures += [_chart(run, number, end_s) for run in order]
    tables = [
        Table("League table", *league(order, baseline, cannot)),
        Table("Devices", *devices_table(order)),
    ]
    if notes := (*refusals(order, cannot), *left_out_lines(order)):
        tables.append(
            Table("Policies and jobs that were refused or left out", ("what",), tuple((n,) for n in notes))
        )
    if parts:
        beside = f", beside {baseline.policy}" if baseline is not None else ""
        tables.append(Table(f"Whose jobs wait{beside}", *groups_table(parts)))
    if left_out is not None and left_out.reasons:
        heading = f"Left out: {left_out.num_left_out:,} of {left_out.num_rows:,} rows of the trace"
        reasons = tuple((f"{each.count:,}", each.text, each.where) for each in left_out.reasons)
        tables.append(Table(heading, ("rows", "why", "where"), reasons))
    return html_page(title, facts, figures, tables, interactive=True)


def _unit(most_s: float) -> tuple[str, float]:
    return next(((name, size_s) for name, size_s in _UNITS if most_s >= 2 * size_s), _UNITS[-1])


def _completions(runs: Sequence[FleetRun]) -> Figure:
    unit, size_s = _unit(max((run.percentile_s(90) for run in runs), default=0.0))
    axes = f"completion time, arrival to end ({unit})", "share of jobs done within"
    return _distributions("Completion times", runs, lambda run: run.completion_s / size_s, axes)


def _waiting(runs: Sequence[FleetRun]) -> Figure:
    waited = [run for run in runs if len(run.names)]
    unit, size_s = _unit(max((float(np.percentile(run.waiting_s, 90)) for run in waited), default=0.0))
    axes = f"time without devices, before the first and later ({unit})", "share of jobs that wait no longer"
    at_once = [f"{run.policy} {percent_text(float(np.mean(run.waiting_s <= 0)))}" for run in waited]
    note = f"Left of the axis are jobs that did not wait: {', '.join(at_once)}."
    return _distributions("Waiting times", runs, lambda run: run.waiting_s / size_s, axes, note)


def _unfairness(runs: Sequence[FleetRun]) -> Figure:
    axes = "completion time over that with an equal share of the cluster", "share of jobs with no more"
    note = "Jobs right of 1 would have been done sooner with an equal share."
    return _distributions("Finish-time fairness", runs, lambda run: run.unfairness, axes, note)


def _distributions(
    heading: str,
    runs: Sequence[FleetRun],
    values_of: Callable[[FleetRun], NDArray[np.float64]],
    axes: tuple[str, str],
    note: str = "",
) -> Figure:
    """The share of jobs up to a value, for every run that has any above 0: the axis is logarithmic."""
    data = []
    for color, run in zip(_colors(runs), runs, strict=True):
        values = np.sort(values_of(run))
        places = _thinned(len(values))
        places = places[values[places] > 0]
        if len(places):
            data.append(_line(run.policy, values[places], (places + 1) / len(values), color))
    layout = _layout(*axes)
    layout["xaxis"]["type"] = "log"
    return Figure(heading, data, layout, note)


def _in_use(runs: Sequence[FleetRun]) -> Figure:
    end_s = max((run.makespan_s for run in runs), default=0.0)
    unit, size_s = _unit(end_s)
    data = []
    for color, run in zip(_colors(runs), runs, strict=True):
        times, counts = _averaged(run.series.time_s, run.series.num_devices_in_use, end_s)
        data.append(_line(run.policy, times / size_s, counts, color))
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


class _Bar(NamedTuple):
    """A job on one of its devices."""

    span: Span
    device: int
    start_s: float
    end_s: float


def _chart(run: FleetRun, number: Mapping[str, int], end_s: float) -> Figure:
    """What ran where: one row per device, one bar per job and stint.

    Parameters
    ----------
    number : of every job, by name; it has the same colour under all policies.
    end_s : of all the charts of a page.
    """
    bars = [
        _Bar(span, device, span.start_s, span.end_s)
        for span in run.spans
        for device in span.devices
        if device < _MAX_DEVICES
    ]
    notes = ["Colours tell jobs apart."]
    if run.site.num_devices > _MAX_DEVICES:
        notes.append(f"The first {_MAX_DEVICES} of {run.site.num_devices} devices.")
    if len(bars) > _MAX_BARS:
        moments = _MAX_BARS // min(_MAX_DEVICES, run.site.num_devices)
        notes.append(
            f"{len(bars)} bars are too many: shown is what runs at {moments} moments, equally far apart."
        )
        bars = _at_moments(bars, moments)
    unit, size_s = _unit(end_s)
    data = {
        "type": "bar",
        "orientation": "h",
        "y": [bar.device for bar in bars],
        "base": [nice(bar.start_s / size_s) for bar in bars],
        "x": [nice((bar.end_s - bar.start_s) / size_s) for bar in bars],
        "marker": {
            "color": [PALETTE[number.get(bar.span.job, 0) % len(PALETTE)] for bar in bars],
            "line": {"width": 0.5, "color": "white"},
        },
        "text": [_label(bar.span) for bar in bars],
        "textposition": "none",
        "hovertemplate": "%{text}<extra></extra>",
    }
    layout = _layout(f"time ({unit})", "device")
    layout |= {
        "bargap": 0.05,
        "showlegend": False,
        "height": 120 + 14 * min(_MAX_DEVICES, run.site.num_devices),
    }
    layout["xaxis"]["range"] = [0, nice(end_s / size_s)]
    layout["yaxis"]["autorange"] = "reversed"
    return Figure(f"What ran where: {run.policy}", [data] if bars else [], layout, " ".join(notes))


def _at_moments(bars: Sequence[_Bar], count: int) -> list[_Bar]:
    """What every device has in the middle of each of so many parts of the time; a stint over several is one bar."""
    edges_s = np.linspace(min(bar.start_s for bar in bars), max(bar.end_s for bar in bars), count + 1)
    middles_s = (edges_s[1:] + edges_s[:-1]) / 2
    found: list[_Bar] = []
    of_device: dict[int, list[_Bar]] = {}
    for bar in sorted(bars, key=lambda bar: bar.start_s):
        of_device.setdefault(bar.device, []).append(bar)
    for own in of_device.values():
        latest = np.searchsorted([bar.start_s for bar in own], middles_s, side="right") - 1
        before = None
        for part in np.flatnonzero(latest >= 0).tolist():
            bar = own[latest[part]]
            if bar.end_s <= middles_s[part]:
                before = None
            elif bar is before:
                found[-1] = found[-1]._replace(end_s=float(edges_s[part + 1]))
            else:
                before = bar
                found.append(bar._replace(start_s=float(edges_s[part]), end_s=float(edges_s[part + 1])))
    return found


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
        "line": {"color": color, "shape": "hv"},
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
