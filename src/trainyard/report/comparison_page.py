"""One self-contained HTML page that compares several ways to run the same step."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any

from trainyard.report.colors import color_of
from trainyard.report.league import Contender, ranked
from trainyard.report.page import Figure, Table, html_page, nice
from trainyard.report.units import bytes_text, percent_text, seconds_text

__all__ = ["comparison_page"]

_DOES_NOT_FIT = "theme:bad"


def comparison_page(title: str, contenders: Sequence[Contender], summary: Mapping[str, str]) -> str:
    """Draw where a step's time goes, memory against capacity, and the league table.

    Parameters
    ----------
    title : heading of the page.
    contenders : in any order; the page ranks them.
    summary : facts shown at the top, by name.

    Returns
    -------
    str
        HTML that needs nothing else, no network either.
    """
    order = ranked(contenders)
    drawn = [c for c in order if c.step_s is not None]
    figures = [_time_figure(drawn), _memory_figure(drawn)] if drawn else []
    return html_page(title, summary, [*figures, _table(order)])


def _time_figure(drawn: Sequence[Contender]) -> Figure:
    longest_s = max(c.step_s or 0.0 for c in drawn)
    unit, per_s = next(
        ((u, scale) for u, scale in (("s", 1.0), ("ms", 1e3)) if longest_s * scale >= 1), ("µs", 1e6)
    )
    names = list(dict.fromkeys(name for c in drawn for name in c.parts_s))
    data = [
        _bars(
            name,
            [c.parts_s.get(name, 0.0) * per_s for c in drawn],
            f"%{{x:.4g}} {unit}",
        )
        for name in names
    ]
    layout = _layout(drawn, f"predicted step time ({unit})")
    layout["annotations"] = [
        _label(row, (c.step_s or 0.0) * per_s, seconds_text(c.step_s or 0.0)) for row, c in enumerate(drawn)
    ]
    layout["xaxis"]["range"] = [0, longest_s * per_s * 1.15]
    return Figure("Where a step's time goes", data, layout)


def _memory_figure(drawn: Sequence[Contender]) -> Figure:
    largest = max(max(c.peak_bytes, c.capacity_bytes) for c in drawn)
    unit, scale = next(((u, s) for u, s in (("GiB", 2**30), ("MiB", 2**20)) if largest >= s), ("KiB", 2**10))
    names = list(dict.fromkeys(name for c in drawn for name in c.memory_bytes))
    data = [
        _bars(name, [c.memory_bytes.get(name, 0) / scale for c in drawn], f"%{{x:.4g}} {unit}")
        for name in names
    ]
    layout = _layout(drawn, f"memory ({unit})")
    layout["annotations"] = [
        _label(row, c.peak_bytes / scale, bytes_text(c.peak_bytes) + ("" if c.fits else " — does not fit"), c)
        for row, c in enumerate(drawn)
    ]
    layout["shapes"] = [
        {
            "type": "line",
            "x0": c.capacity_bytes / scale,
            "x1": c.capacity_bytes / scale,
            "y0": row - 0.45,
            "y1": row + 0.45,
            "line": {"color": _DOES_NOT_FIT, "width": 2, "dash": "dot"},
        }
        for row, c in enumerate(drawn)
    ]
    layout["xaxis"]["range"] = [0, largest / scale * 1.2]
    layout["xaxis"]["title"]["text"] += "; the dotted line is the device's capacity"
    return Figure("Memory of the fullest device", data, layout)


def _bars(name: str, values: list[float], hover: str) -> dict[str, Any]:
    return {
        "type": "bar",
        "orientation": "h",
        "name": html.escape(name.replace("_", " ")),
        "y": list(range(len(values))),
        "x": [nice(value) for value in values],
        "hovertemplate": hover,
        "marker": {"color": color_of(name)},
    }


def _label(row: int, x: float, text: str, contender: Contender | None = None) -> dict[str, Any]:
    color = _DOES_NOT_FIT if contender is not None and not contender.fits else "theme:ink"
    return {
        "x": x,
        "y": row,
        "text": text,
        "showarrow": False,
        "xanchor": "left",
        "xshift": 6,
        "font": {"color": color},
        "bgcolor": "theme:paper",
    }


def _layout(drawn: Sequence[Contender], axis: str) -> dict[str, Any]:
    return {
        "barmode": "stack",
        "height": 150 + 44 * len(drawn),
        "margin": {"l": 40, "r": 20, "t": 10, "b": 50},
        "bargap": 0.35,
        "showlegend": True,
        "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0, "traceorder": "normal"},
        "xaxis": {"title": {"text": axis}},
        "yaxis": {
            "tickvals": list(range(len(drawn))),
            "ticktext": [html.escape(c.name) for c in drawn],
            "range": [len(drawn) - 0.4, -0.6],
            "fixedrange": True,
            "ticksuffix": "  ",
            "showgrid": False,
        },
    }


def _table(order: Sequence[Contender]) -> Table:
    def cells(each: Contender) -> tuple[str, ...]:
        if each.step_s is None:
            return (each.name, "no plan", "", "", each.what)
        memory = f"{bytes_text(each.peak_bytes)} of {bytes_text(each.capacity_bytes)}"
        mfu = "" if each.mfu is None else percent_text(each.mfu)
        return (each.name, seconds_text(each.step_s), mfu, memory, each.what)

    columns = ("strategy", "step", "MFU", "memory per device", "plan")
    unfit = frozenset(i for i, each in enumerate(order) if not each.fits)
    return Table(
        "League table", columns, tuple(map(cells, order)), unfit, best=0 if order and order[0].fits else None
    )
