"""One self-contained HTML page about a plan for serving: the frontier, what was simulated, and what bounds it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainyard.reading.left_out import LeftOut
from trainyard.report.axes import layout
from trainyard.report.page import PALETTE, Figure, Table, html_page, nice
from trainyard.report.remarks import remark_tables
from trainyard.report.serve_figures import latencies
from trainyard.report.serve_plan import (
    evidence,
    frontier_rows,
    limit_rows,
    limit_title,
    plan_facts,
    refused_rows,
    verdict,
)
from trainyard.serve.planning.frontier import FrontierPoint, frontier
from trainyard.serve.planning.plan import ServingPlan
from trainyard.serve.splits import split_text

__all__ = ["serve_plan_page"]

_MOST_ROWS = 100


def serve_plan_page(
    title: str, plan: ServingPlan, facts: Mapping[str, str], *, left_out: LeftOut | None = None
) -> str:
    """Show the plan, the frontier as a picture, times of requests, runners-up and what bounds it.

    Parameters
    ----------
    facts : shown at the top before those of the plan, by name.
    left_out : rows of the trace that gave no request, and what is to be said of how it was read.
    """
    colors = {run.name: PALETTE[i % len(PALETTE)] for i, run in enumerate(plan.runs)}
    columns, rows = evidence((plan.best, *plan.runners_up), _MOST_ROWS)
    sections: list[Figure | Table] = [_frontier(plan), Table("Simulated, best first", columns, rows)]
    if plan.limits:
        heading = limit_title(plan)
        sections.append(Table(heading[0].upper() + heading[1:], ("bound", "if", "goodput"), limit_rows(plan)))
    sections += remark_tables((verdict(plan),), left_out)
    sections += latencies(plan.runs, colors)
    if plan.refused:
        sections.append(Table("Splits that will not do", ("split", "why"), refused_rows(plan)))
    header = ("split", "requests at once", "tokens/s of a user", "tokens/s of a device")
    sections.append(Table("Frontier, in a steady state", header, frontier_rows(plan.points)))
    return html_page(title, {**facts, **dict(plan_facts(plan))}, sections, interactive=True)


def _frontier(plan: ServingPlan) -> Figure:
    """A curve for each split, the frontier of all, and where the plan is in its simulation."""
    curves: dict[str, list[FrontierPoint]] = {}
    for each in plan.points:
        curves.setdefault(split_text(each.tensor_parallel, each.pipeline_stages), []).append(each)
    data = [_curve("frontier", frontier(plan.points), {"color": "#bbb", "width": 8})]
    for place, (name, points) in enumerate(curves.items()):
        data.append(_curve(name, points, {"color": PALETTE[place % len(PALETTE)]}))
    summary = plan.summary
    if summary.tpot.mean_s > 0:
        user, device = 1 / summary.tpot.mean_s, summary.tokens_per_s / plan.deployment.num_devices
        data.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": "the plan, simulated",
                "x": [nice(user)],
                "y": [nice(device)],
                "text": [str(plan.deployment)],
                "hovertemplate": "%{text}<br>%{x:.4g} tokens/s of a user, %{y:.4g} of a device",
                "marker": {"symbol": "star", "size": 16, "color": "#222"},
            }
        )
    drawn = layout("tokens per second of a user", "tokens per second of a device")
    drawn["xaxis"] |= {"type": "log"}
    drawn["yaxis"] |= {"rangemode": "tozero"}
    note = (
        "Along a curve more requests run at once, all of mean length: users get fewer tokens, and devices give more. The "
        "plan is below its curve where its devices are not always busy, or the load is not steady."
    )
    return Figure("Tokens of a device against tokens of a user", data, drawn, note)


def _curve(
    name: str, points: tuple[FrontierPoint, ...] | list[FrontierPoint], line: dict[str, Any]
) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "lines" if name == "frontier" else "lines+markers",
        "name": name,
        "x": [nice(each.user_tokens_per_s) for each in points],
        "y": [nice(each.device_tokens_per_s) for each in points],
        "text": [
            f"{split_text(each.tensor_parallel, each.pipeline_stages)}, {each.num_requests:,} at once"
            for each in points
        ],
        "hovertemplate": "%{text}<br>%{x:.4g} tokens/s of a user, %{y:.4g} of a device",
        "line": line,
    }
