"""Figures and a table of who waits, by user, size and the like, and who waits longer than under a baseline."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from trainyard.fleet.groups import extra_waiting_s, of_both
from trainyard.fleet.records import FleetRun
from trainyard.report.axes import layout, unit_of
from trainyard.report.fleet_groups import Part
from trainyard.report.page import Figure, Table, nice
from trainyard.report.units import duration_text

__all__ = ["extra_waiting", "losing_jobs", "waits_by_group"]

_MOST_GROUPS = 12
_MOST_JOBS = 8
_LONGEST_NAME = 22
_THICK = 0.8  # of a group's bars together, of what it has


def waits_by_group(parts: Sequence[Part], colors: Mapping[str, str]) -> tuple[Figure, ...]:
    """Mean and 90th percentile of the time that jobs wait, a figure for every dimension.

    Parameters
    ----------
    colors : of the policies, in the order in which they are shown.
    """
    return tuple(
        _waits(dimension, [part for part in parts if part.dimension == dimension and part.run.jobs], colors)
        for dimension in dict.fromkeys(part.dimension for part in parts)
    )


def _waits(dimension: str, parts: Sequence[Part], colors: Mapping[str, str]) -> Figure:
    longest_s: dict[str, float] = {}
    for part in parts:
        longest_s[part.group] = max(longest_s.get(part.group, 0.0), float(part.run.waiting_s.sum()))
    groups = list(longest_s)
    note = "Bars are means, points 90th percentiles, of all time without devices."
    if len(groups) > _MOST_GROUPS:
        groups = sorted(groups, key=lambda group: -longest_s[group])[:_MOST_GROUPS]
        note += f" {len(groups)} of {len(longest_s)}, those who wait longest in all; the last table has all."
    means_s = {(part.group, part.policy): part.run.mean_waiting_s for part in parts}
    most_s = {(part.group, part.policy): float(np.percentile(part.run.waiting_s, 90)) for part in parts}
    unit, size_s = unit_of(max((*means_s.values(), *most_s.values()), default=0.0))
    data = _bars(groups, means_s, colors, unit, size_s)
    points = [
        {
            **bars,
            "type": "scatter",
            "mode": "markers",
            "x": [None if key not in most_s else nice(most_s[key] / size_s) for key in _keys(groups, policy)],
            "marker": {
                "color": color,
                "size": 7,
                "symbol": "diamond",
                "line": {"width": 1, "color": "theme:paper"},
            },
            "hovertemplate": f"90th percentile: %{{x:.3g}} {unit}",
            "showlegend": False,
        }
        for bars, (policy, color) in zip(data, colors.items(), strict=True)
    ]
    drawn = _rows([_short(group) for group in groups], f"waiting ({unit})", len(colors))
    return Figure(f"Waiting by {dimension}", data + points if groups else [], drawn, note)


def extra_waiting(parts: Sequence[Part], baseline: FleetRun, colors: Mapping[str, str]) -> Figure:
    """The groups whose jobs wait longer than under the baseline, by the most under any policy."""
    extra_s = {
        (f"{part.dimension} {part.group}", part.policy): extra_waiting_s(part.run, part.base)
        for part in parts
        if part.base is not None and part.policy != baseline.policy
    }
    most_s: dict[str, float] = {}
    for (group, _), value_s in extra_s.items():
        if value_s > 0:
            most_s[group] = max(most_s.get(group, 0.0), value_s)
    groups = sorted(most_s, key=lambda group: -most_s[group])[:_MOST_GROUPS]
    others = {policy: color for policy, color in colors.items() if policy != baseline.policy}
    unit, size_s = unit_of(max(most_s.values(), default=0.0))
    counts = {f"{part.dimension} {part.group}": len(part.run.jobs) for part in parts}
    names = [f"{_short(group)} ({counts[group]:,})" for group in groups]
    drawn = _rows(names, f"mean extra waiting ({unit})", len(others))
    note = f"Mean waiting less that of the same jobs under {baseline.policy}; in brackets how many jobs."
    if len(groups) < len(most_s):
        note += f" {len(groups)} of {len(most_s)} groups that wait longer."
    data = _bars(groups, extra_s, others, unit, size_s) if groups else []
    return Figure(f"Who waits longer than under {baseline.policy}", data, drawn, note)


def losing_jobs(runs: Sequence[FleetRun], baseline: FleetRun) -> Table | None:
    """The jobs that wait longest beside the baseline, a few of every policy; None if nobody waits longer."""
    rows = []
    for run in runs:
        if run is baseline:
            continue
        ours, theirs = of_both(run, baseline)
        extra_s = run.waiting_s[ours] - baseline.waiting_s[theirs]
        for i in np.argsort(-extra_s, kind="stable")[:_MOST_JOBS]:
            if extra_s[i] <= 0:
                break
            job, own, base = run.jobs[ours[i]], ours[i], theirs[i]
            rows.append(
                (
                    run.policy,
                    _short(job.name),
                    _short(job.user),
                    str(job.num_devices),
                    duration_text(extra_s[i]),
                    f"{duration_text(baseline.waiting_s[base])} / {duration_text(run.waiting_s[own])}",
                    f"{duration_text(baseline.completion_s[base])} / {duration_text(run.completion_s[own])}",
                    f"{baseline.slowdown[base]:.1f}x / {run.slowdown[own]:.1f}x",
                )
            )
    header = ("policy", "job", "user", "devices", "waits longer", "waiting", "JCT", "slowdown")
    title = f"Jobs that wait longest beside {baseline.policy}, {baseline.policy} / policy"
    return Table(title, header, tuple(rows)) if rows else None


def _keys(groups: Sequence[str], policy: str) -> list[tuple[str, str]]:
    return [(group, policy) for group in groups]


def _bars(
    groups: Sequence[str],
    values_s: Mapping[tuple[str, str], float],
    colors: Mapping[str, str],
    unit: str,
    size_s: float,
) -> list[dict[str, Any]]:
    """A group per row, and in it a bar for every policy that has a value."""
    thick = _THICK / max(len(colors), 1)
    return [
        {
            "type": "bar",
            "orientation": "h",
            "name": html.escape(policy),
            "y": [nice(row - _THICK / 2 + (place + 0.5) * thick) for row in range(len(groups))],
            "x": [
                nice(values_s[key] / size_s) if np.isfinite(values_s.get(key, np.nan)) else None
                for key in _keys(groups, policy)
            ],
            "width": thick,
            "marker": {"color": color},
            "hovertemplate": f"%{{x:.3g}} {unit}",
        }
        for place, (policy, color) in enumerate(colors.items())
    ]


def _rows(names: Sequence[str], axis: str, num_policies: int) -> dict[str, Any]:
    drawn = layout(axis, "", height=130 + len(names) * (12 + 9 * num_policies))
    drawn["yaxis"] |= {
        "tickvals": list(range(len(names))),
        "ticktext": [html.escape(name) for name in names],
        "range": [len(names) - 0.5, -0.5],
        "showgrid": False,
        "ticksuffix": " ",
    }
    return {**drawn, "barmode": "overlay"}


def _short(name: str) -> str:
    return name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1]}…"
