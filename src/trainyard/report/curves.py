"""Figures of curves: the distribution of a number, and what changes over time, a curve for each policy."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainyard.report.axes import TimeAxis, layout, line, log_ticks
from trainyard.report.page import Figure, nice
from trainyard.report.units import duration_text

__all__ = ["Curve", "Sample", "distributions", "over_time"]

Floats = NDArray[np.float64]

_MAX_POINTS = 1_000
# More curves over time have plots of their own, of which a part is the room for the name.
_MOST_TOGETHER, _PLOT_PX, _GAP = 2, 100, 0.25


class Sample(NamedTuple):
    """Values of which a distribution is drawn, in any order."""

    name: str
    color: str
    values: Floats


class Curve(NamedTuple):
    """Values at moments, each up to the next."""

    name: str
    color: str
    times_s: Floats
    values: Floats


def distributions(
    heading: str,
    samples: Sequence[Sample],
    axes: tuple[str, str],
    note: str = "",
    time_text: Callable[[float], str] | None = duration_text,
    objective: float | None = None,
) -> Figure:
    """The share of values up to a value, for every sample that has any above 0: the axis is logarithmic.

    Parameters
    ----------
    axes : titles.
    time_text : how seconds read; None where values are no seconds.
    objective : a value that is marked by a vertical line.
    """
    data = []
    for name, color, unsorted in samples:
        values = np.sort(unsorted)
        places = _thinned(len(values))
        places = places[values[places] > 0]
        if len(places):
            x, y = values[places].tolist(), ((places + 1) / len(values)).tolist()
            text = [time_text(value) for value in x] if time_text else None
            data.append(line(name, [nice(value) for value in x], y, color, text))
    drawn = layout(*axes)
    ends = [place for each in data for place in (each["x"][0], each["x"][-1])]
    if objective is not None and ends:
        data.append(_vertical_line(objective, time_text))
        ends.append(objective)
    drawn["xaxis"] |= log_ticks(min(ends), max(ends)) if time_text and ends else {"type": "log"}
    if ends:
        drawn["xaxis"] |= {"range": _with_margin(math.log10(min(ends)), math.log10(max(ends)))}
    return Figure(heading, data, drawn, note)


def over_time(
    heading: str, what: str, curves: Sequence[Curve], axis: TimeAxis, part: str, most: float = 0.0
) -> Figure:
    """Return a figure of values over time; None if no time passes.

    One curve or two share a plot. More would hide each other: each has a small plot of its own, all of one scale.

    Parameters
    ----------
    what : title of the second axis.
    part : of which a value is the mean, in words.
    most : that the second axis has room for at least.
    """
    if axis.end_s <= 0:
        return Figure(heading, [], {})
    data = [line(each.name, axis.places(each.times_s), each.values.tolist(), each.color) for each in curves]
    scale = {"range": [0, 1.05 * max(most, *(each.values.max() for each in curves))]} if curves else {}
    drawn = layout("", what)
    if len(curves) > _MOST_TOGETHER:
        drawn = _small_plots(data, what, scale)
    else:
        drawn["yaxis"] |= scale
    drawn["xaxis"] |= axis.layout
    return Figure(heading, data, drawn, f"Each point is the mean over {part}.")


def _small_plots(data: Sequence[dict[str, Any]], what: str, scale: Mapping[str, Any]) -> dict[str, Any]:
    """Give every line a plot of its own, one below the other, and its name in place of a legend."""
    count = len(data)
    drawn = layout("", "", height=90 + _PLOT_PX * count, showlegend=False, annotations=[])
    drawn["margin"] |= {"t": 24}
    for number, each in enumerate(data):
        top, name = 1 - number / count, f"y{number + 1}" if number else "y"
        each |= {"yaxis": name, "fill": "tozeroy"}
        domain = [top - (1 - _GAP) / count, top]
        title = {"title": {"text": what}} if number == count // 2 else {}
        drawn[f"yaxis{number + 1}" if number else "yaxis"] = {"domain": domain, "nticks": 4, **scale, **title}
        drawn["annotations"].append(
            {
                "text": f"<b>{each['name']}</b>", "x": 0, "xref": "paper", "xanchor": "left", "y": top,
                "yref": "paper", "yanchor": "bottom", "showarrow": False,
            }
        )  # fmt: skip
    drawn["xaxis"] |= {"anchor": name}
    return drawn


def _with_margin(least: float, most: float) -> list[float]:
    """A range that leaves room for the label of a tick, and for a line, at either end."""
    margin = 0.03 * (most - least) or 0.1
    return [nice(least - margin), nice(most + margin)]


def _vertical_line(value: float, text: Callable[[float], str] | None) -> dict[str, Any]:
    """The line of an objective, from the lowest share to the highest."""
    name = f"objective, {text(value) if text else nice(value)}"
    return {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "x": [nice(value)] * 2,
        "y": [0, 1],
        "line": {"color": "theme:ink", "width": 1.5, "dash": "dot"},
        "text": [name] * 2,
        "hovertemplate": "%{text}",
    }


def _thinned(count: int) -> NDArray[np.int64]:
    """Up to so many places of a sorted list, first and last among them."""
    return (
        np.unique(np.linspace(0, count - 1, min(count, _MAX_POINTS)).astype(np.int64))
        if count
        else np.zeros(0, int)
    )
