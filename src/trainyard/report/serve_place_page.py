"""One self-contained HTML page about placements of many models: which devices have them, and how busy these are."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any

from trainyard.report.axes import layout
from trainyard.report.colors import series_color
from trainyard.report.page import Figure, Table, html_page, nice
from trainyard.report.remarks import remark_tables
from trainyard.report.serve_place import device_rows, league_rows, model_rows, replica_text, slo_rows
from trainyard.report.units import bytes_text, percent_text
from trainyard.serve.placing.compare import CannotPlace, PlacementRun
from trainyard.serve.placing.problem import PlacingProblem

__all__ = ["serve_place_page"]

_ROW_PX = 34
_MOST_BESIDE = 4
# Of the width of a plot, beside the next one.
_GAP = 0.12


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
        Table("Policies, best first", *league_rows(problem, runs, cannot), best=0),
        Table("SLO met, by model", *slo_rows(problem, runs)),
        Table("Models", *model_rows(problem)),
    ]
    sections += remark_tables([f"{each.name} cannot place them: {each.why}" for each in cannot], None)
    sections += [_models_by_device(problem, runs), _load(problem, runs)]
    sections += [Table(f"On which devices: {run.name}", *device_rows(run.placed)) for run in runs]
    return html_page(title, facts, sections, interactive=True)


def _models_by_device(problem: PlacingProblem, runs: Sequence[PlacementRun]) -> Figure:
    """A row for each device, a column for each model, and a mark where a device has a model or a part of it."""
    names = [each.name for each in problem.models]
    drawn = _beside(runs, problem.num_devices, "model")
    data = []
    for place, run in enumerate(runs):
        drawn[_axis("x", place)] |= {
            "tickvals": list(range(len(names))),
            "ticktext": [html.escape(name) for name in names],
            "range": [-0.5, len(names) - 0.5],
        }
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
                    "xaxis": f"x{place + 1}",
                    "yaxis": f"y{place + 1}",
                    "text": [html.escape(f"device {device}: {text}") for device, text in there],
                    "hovertemplate": "%{text}<extra></extra>",
                    "marker": {"symbol": "square", "size": 22, "color": series_color(number)},
                }
            )
    return Figure("Devices and models", data, drawn, "A square is a model, or a part of it, on a device.")


def _load(problem: PlacingProblem, runs: Sequence[PlacementRun]) -> Figure:
    """How busy each device is under each policy; no figure where no time passes."""
    shares = [[100 * load for load in run.placed.load] for run in runs]
    most = max((share for own in shares for share in own), default=0.0)
    if most <= 0:
        return Figure("Load of devices", [], {})
    drawn = _beside(runs, problem.num_devices, "busy (%)")
    data = []
    for place, own in enumerate(shares):
        drawn[_axis("x", place)] |= {"range": [0, 1.2 * most]}
        data.append(
            {
                "type": "bar",
                "orientation": "h",
                "name": html.escape(runs[place].name),
                "x": [nice(share) for share in own],
                "y": list(range(len(own))),
                "xaxis": f"x{place + 1}",
                "yaxis": f"y{place + 1}",
                "text": [f"{share:.1f} %" for share in own],
                "textposition": "outside",
                "cliponaxis": False,
                "hovertemplate": "device %{y}: %{text}<extra></extra>",
                "marker": {"color": "theme:middle"},
            }
        )
    note = "The share of the time up to the last arrival in which a device computes; above 100 % it needs longer."
    return Figure("Load of devices", data, drawn, note)


def _beside(runs: Sequence[PlacementRun], num_devices: int, what: str) -> dict[str, Any]:
    """A plot for every policy, several in a row, all with a row for each device."""
    columns = min(len(runs), _MOST_BESIDE)
    rows = -(-len(runs) // columns)
    row_px = 90 + _ROW_PX * num_devices
    drawn = layout("", "", height=row_px * rows, showlegend=False, annotations=[])
    drawn["margin"] |= {"t": 30, "b": 60}
    for place, run in enumerate(runs):
        column, row = place % columns, place // columns
        left, top = column / columns, 1 - row / rows
        drawn[_axis("x", place)] = {
            "domain": [left, left + (1 - _GAP) / columns],
            "anchor": f"y{place + 1}",
            "title": {"text": what},
        }
        drawn[_axis("y", place)] = {
            "domain": [top - (1 - 90 / row_px * (rows > 1)) / rows, top],
            "anchor": f"x{place + 1}",
            "range": [num_devices - 0.5, -0.5],
            "dtick": max(1, num_devices // 32),
            **({} if column else {"title": {"text": "device"}}),
        }
        drawn["annotations"].append(
            {
                "text": f"<b>{html.escape(run.name)}</b>", "x": left, "xref": "paper", "xanchor": "left", "y": top,
                "yref": "paper", "yanchor": "bottom", "showarrow": False,
            }
        )  # fmt: skip
    return drawn


def _axis(letter: str, place: int) -> str:
    """Return the name of the axis of a plot in the layout of a figure."""
    return f"{letter}axis{place + 1 if place else ''}"
