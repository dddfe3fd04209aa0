"""Figures of curves: the distribution of a number, and what changes over time, a curve for each policy."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainyard.report.axes import TimeAxis, layout, line, log_ticks
from trainyard.report.page import Figure, nice
from trainyard.report.units import duration_text

__all__ = ["Curve", "Sample", "distributions", "over_time"]

Floats = NDArray[np.float64]

_MAX_POINTS = 1_000


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

    Parameters
    ----------
    what : title of the second axis.
    part : of which a value is the mean, in words.
    most : that the second axis has room for at least.
    """
    if axis.end_s <= 0:
        return Figure(heading, [], {})
    data = [line(each.name, axis.places(each.times_s), each.values.tolist(), each.color) for each in curves]
    drawn = layout("", what)
    drawn["xaxis"] |= axis.layout
    if curves:
        drawn["yaxis"] |= {"range": [0, 1.05 * max(most, *(each.values.max() for each in curves))]}
    return Figure(heading, data, drawn, f"Each point is the mean over {part}.")


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
        "line": {"color": "#222", "width": 1.5, "dash": "dot"},
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
