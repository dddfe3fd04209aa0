"""One self-contained HTML page about placements of many models: a picture of devices and models for each policy."""

from __future__ import annotations

import html
from collections.abc import Sequence

from trainyard.report.axes import layout
from trainyard.report.page import PALETTE, Figure, Table, html_page
from trainyard.report.remarks import remark_tables
from trainyard.report.serve_place import device_rows, league_rows, model_rows, replica_text, slo_rows
from trainyard.report.units import bytes_text, percent_text
from trainyard.serve.placing.compare import CannotPlace, PlacementRun
from trainyard.serve.placing.problem import PlacingProblem

__all__ = ["serve_place_page"]

_ROW_PX = 34


def serve_place_page(
    title: str, problem: PlacingProblem, runs: Sequence[PlacementRun], cannot: Sequence[CannotPlace]
) -> str:
    """Show the league, the models, and each placement as a picture and as a table.

    Parameters
    ----------
    runs : at least one, the best first.
    """
    best = runs[0]
    facts = {
        "devices": f"{problem.num_devices}",
        "memory for weights": f"{bytes_text(problem.device_bytes)} a device",
        "best": best.name,
        "SLO met by the best": percent_text(best.placed.slo_attainment),
    }
    sections: list[Figure | Table] = [
        Table("Policies, best first", *league_rows(problem, runs, cannot)),
        Table("SLO met, by model", *slo_rows(problem, runs)),
        Table("Models", *model_rows(problem)),
    ]
    sections += remark_tables([f"{each.name} cannot place them: {each.why}" for each in cannot], None)
    for run in runs:
        sections.append(_picture(problem, run))
        sections.append(Table(f"On which devices: {run.name}", *device_rows(run.placed)))
    return html_page(title, facts, sections, interactive=True)


def _picture(problem: PlacingProblem, run: PlacementRun) -> Figure:
    """A row for each device, a column for each model, and a mark where a device has a model or a part of it."""
    names = [each.name for each in problem.models]
    data = []
    for number, name in enumerate(names):
        there = [
            (device, replica_text(each))
            for each in run.placed.replicas
            if each.replica.model == name
            for device in each.devices
        ]
        data.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": html.escape(name),
                "x": [number] * len(there),
                "y": [device for device, _ in there],
                "text": [html.escape(f"device {device}: {text}") for device, text in there],
                "hovertemplate": "%{text}<extra></extra>",
                "marker": {"symbol": "square", "size": 22, "color": PALETTE[number % len(PALETTE)]},
            }
        )
    drawn = layout("model", "device", height=140 + _ROW_PX * problem.num_devices, showlegend=False)
    drawn["xaxis"] |= {
        "tickvals": list(range(len(names))),
        "ticktext": [html.escape(name) for name in names],
        "range": [-0.5, len(names) - 0.5],
    }
    drawn["yaxis"] |= {"dtick": 1, "range": [problem.num_devices - 0.5, -0.5]}
    return Figure(f"Devices and models: {run.name}", data, drawn)
