"""Figures of curves: the distribution of a number, and what changes over time, a curve for each policy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

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
) -> Figure:
    """The share of values up to a value, for every sample that has any above 0: the axis is logarithmic.

    Parameters
    ----------
    axes : titles.
    time_text : how seconds read; None where values are no seconds.
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
    drawn["xaxis"] |= log_ticks(min(ends), max(ends)) if time_text and ends else {"type": "log"}
    return Figure(heading, data, drawn, note)


def over_time(
    heading: str, what: str, curves: Sequence[Curve], axis: TimeAxis, part: str, most: float = 0.0
) -> Figure:
    """What changes over time; no figure if no time passes.

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


def _thinned(count: int) -> NDArray[np.int64]:
    """Up to so many places of a sorted list, first and last among them."""
    return (
        np.unique(np.linspace(0, count - 1, min(count, _MAX_POINTS)).astype(np.int64))
        if count
        else np.zeros(0, int)
    )
