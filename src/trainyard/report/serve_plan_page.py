"""One self-contained HTML page about a serving plan: the frontier, the simulated deployments, and the bottleneck."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainyard.reading.left_out import LeftOut
from trainyard.report.axes import layout
from trainyard.report.colors import series_color
from trainyard.report.page import Figure, Table, html_page, nice
from trainyard.report.remarks import remark_tables
from trainyard.report.serve_figures import latencies
from trainyard.report.serve_league import columns_in_full
from trainyard.report.serve_plan import (
    BOTTLENECK_COLUMNS,
    FRONTIER_COLUMNS,
    bottleneck_rows,
    bottleneck_title,
    evidence,
    excluded_rows,
    frontier_rows,
    plan_facts,
)
from trainyard.serve.planning.frontier import FrontierPoint, frontier
from trainyard.serve.planning.plan import ServingPlan

__all__ = ["serve_plan_page"]

_MOST_ROWS = 100
_DASHES = {1: "solid", 2: "dash"}
_TICKS = [count * 10**power for power in range(5) for count in (1, 2, 5)]


def serve_plan_page(
    title: str, plan: ServingPlan, facts: Mapping[str, str], *, left_out: LeftOut | None = None
) -> str:
    """Show the plan, the Pareto frontier, the latency of requests, the runners-up and the bottleneck.

    Parameters
    ----------
    facts : shown at the top before those of the plan, by name.
    left_out : rows of the trace that gave no request, and what is to be said of how it was read.
    """
    colors = {run.name: series_color(i) for i, run in enumerate(plan.runs)}
    columns, rows = evidence((plan.best, *plan.runners_up), _MOST_ROWS)
    name = "Deployments that meet the objectives, best first" if plan.is_met else "The closest deployment"
    sections: list[Figure | Table] = [
        _frontier(plan),
        Table(name, columns_in_full(columns), rows, best=0 if plan.is_met else None),
    ]
    if plan.bottlenecks:
        heading = bottleneck_title(plan)
        sections.append(Table(heading[0].upper() + heading[1:], BOTTLENECK_COLUMNS, bottleneck_rows(plan)))
    sections += remark_tables((), left_out)
    sections += latencies(plan.runs, colors)
    if plan.excluded_splits:
        sections.append(Table("Splits that are ruled out", ("split", "why"), excluded_rows(plan)))
    sections.append(Table("Pareto frontier, in a steady state", FRONTIER_COLUMNS, frontier_rows(plan.points)))
    return html_page(title, {**facts, **dict(plan_facts(plan))}, sections, interactive=True)


def _frontier(plan: ServingPlan) -> Figure:
    """A curve for each split, the Pareto frontier of all, and where the simulated plan is."""
    curves: dict[str, list[FrontierPoint]] = {}
    for each in plan.points:
        curves.setdefault(each.split, []).append(each)
    data = [_curve("Pareto frontier", frontier(plan.points), {"color": "theme:idle", "width": 8})]
    for place, (name, points) in enumerate(curves.items()):
        # Dashed with stages or ranks, since such a curve often lies on that of the same split without them.
        first = points[0]
        dash = "dashdot" if first.data_parallel > 1 else _DASHES.get(first.pipeline_stages, "dot")
        data.append(_curve(name, points, {"color": series_color(place), "dash": dash}))
    summary = plan.summary
    if summary.tpot.mean_s > 0:
        user, device = 1 / summary.tpot.mean_s, summary.tokens_per_s / plan.deployment.num_devices
        data.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": "the plan, as simulated",
                "x": [nice(user)],
                "y": [nice(device)],
                "text": [str(plan.deployment)],
                "hovertemplate": "%{text}<br>%{x:.4g} tokens/s per user, %{y:.4g} per device",
                "marker": {"symbol": "star", "size": 16, "color": "theme:ink"},
            }
        )
    drawn = layout("tokens/s per user", "tokens/s per device")
    drawn["xaxis"] |= {"type": "log", "tickvals": _TICKS, "ticktext": [f"{tick:,}" for tick in _TICKS]}
    drawn["yaxis"] |= {"rangemode": "tozero"}
    note = (
        "Each point is a number of concurrent requests, all of mean length: 1 at the right end of a curve, and twice as "
        "many at each point to the left. Higher is more throughput, further right is more speed for each user. The plan "
        "is below its curve, since its devices need room for bursts."
    )
    return Figure("Throughput per device against speed for one user", data, drawn, note)


def _curve(
    name: str, points: tuple[FrontierPoint, ...] | list[FrontierPoint], line: dict[str, Any]
) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "lines" if name == "Pareto frontier" else "lines+markers",
        "name": name,
        "x": [nice(each.user_tokens_per_s) for each in points],
        "y": [nice(each.device_tokens_per_s) for each in points],
        "text": [f"{each.split}, {each.num_requests:,} concurrent requests" for each in points],
        "hovertemplate": "%{text}<br>%{x:.4g} tokens/s per user, %{y:.4g} per device",
        "line": line,
    }
