"""Parts that figures share: time on an axis, lines, and their layout."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainyard.report.page import nice

__all__ = ["NUM_PARTS", "TimeAxis", "layout", "line", "log_ticks", "unit_of"]

Floats = NDArray[np.float64]

NUM_PARTS = 1_000
"""Of the time, over which lines are averaged."""
_UNITS = (("d", 86_400.0), ("h", 3_600.0), ("min", 60.0), ("s", 1.0))


def unit_of(most_s: float) -> tuple[str, float]:
    """Name and seconds of the unit that suits times up to this one."""
    return next(((name, size_s) for name, size_s in _UNITS if most_s >= 2 * size_s), _UNITS[-1])


_TICKS_S = {
    f"{count} {name}": count * size_s
    for name, size_s, counts in (
        ("ms", 0.001, (1, 2, 5, 10, 20, 50, 100, 200, 500)),
        ("s", 1.0, (1, 2, 5, 10, 30)), ("min", 60.0, (1, 2, 5, 10, 30)), ("h", 3_600.0, (1, 2, 5, 10)),
        ("d", 86_400.0, (1, 2, 5, 10, 30, 100, 300, 1_000)),
    )
    for count in counts
}  # fmt: skip
_FINE = {f"{count} ms" for count in (2, 5, 20, 50, 200, 500)}
_COARSE = ("1 ms", "1 s", "1 min", "10 min", "1 h", "1 d", "10 d", "100 d", "1000 d")
_FEW = 8


def log_ticks(least_s: float, most_s: float) -> dict[str, Any]:
    """Return the layout of a logarithmic axis of seconds: its ticks, each in a unit that suits it."""
    inside = {name: at_s for name, at_s in _TICKS_S.items() if least_s / 2 <= at_s <= 2 * most_s}
    medium = set(inside) - _FINE
    for kept in (set(inside), medium, {n for n in medium if n.split()[0] in ("1", "5", "10")}, set(_COARSE)):
        shown = {name: at_s for name, at_s in inside.items() if name in kept}
        if len(shown) <= _FEW:
            break
    return {"type": "log", "tickvals": list(shown.values()), "ticktext": list(shown)}


@dataclass(frozen=True)
class TimeAxis:
    """The time of a page, from 0 to the last end: dates where it is known when that was.

    Attributes
    ----------
    end_s : of all that is shown.
    zero : when time 0 was, in the time zone in which dates are shown; None if that is not known.
    """

    end_s: float
    zero: datetime | None

    @cached_property
    def edges_s(self) -> Floats:
        """The edges of the equal parts over which lines are averaged; none if no time passes."""
        return np.linspace(0.0, self.end_s, NUM_PARTS + 1) if self.end_s > 0 else np.zeros(1)

    @cached_property
    def scale(self) -> tuple[float, float]:
        """The place of time 0 on the axis, and the length of a second; an axis of dates counts ms since 1970."""
        if self.zero is None:
            return 0.0, 1.0 / unit_of(self.end_s)[1]
        return (self.zero.timestamp() + _offset_s(self.zero)) * 1e3, 1e3

    def places(self, times_s: Floats) -> list[float]:
        """Times as places on the axis."""
        origin, per_s = self.scale
        if self.zero is None:
            return [nice(value) for value in (times_s * per_s).tolist()]
        found: list[float] = np.round(origin + times_s * per_s).tolist()
        return found

    @property
    def layout(self) -> dict[str, Any]:
        """The layout of this axis."""
        found = {"range": self.places(np.array([0.0, self.end_s])), "title": {"text": self._title}}
        return found if self.zero is None else {**found, "type": "date", "nticks": 6}

    @property
    def _title(self) -> str:
        if self.zero is None:
            return f"time ({unit_of(self.end_s)[0]})"
        offset_s = _offset_s(self.zero)
        end = datetime.fromtimestamp(self.zero.timestamp() + self.end_s, self.zero.tzinfo)
        hours, minutes = divmod(abs(round(offset_s / 60)), 60)
        name = f"UTC{'-' if offset_s < 0 else '+'}{hours:02}:{minutes:02}" if offset_s else "UTC"
        return f"date ({name}{', as at the start' if _offset_s(end) != offset_s else ''})"


def _offset_s(moment: datetime) -> float:
    offset = moment.utcoffset()
    return 0.0 if offset is None else offset.total_seconds()


def line(
    name: str, x: Sequence[float], y: Sequence[float], color: str, text: Sequence[str] | None = None
) -> dict[str, Any]:
    """A line of steps.

    Parameters
    ----------
    text : how the places on the first axis read, if not as numbers.
    """
    return {
        "type": "scatter",
        "mode": "lines",
        "name": html.escape(name),
        "x": x,
        "y": [nice(value) for value in y],
        "line": {"color": color, "shape": "hv"},
        **({} if text is None else {"text": text, "hovertemplate": "%{text}: %{y:.3f}"}),
    }


def layout(x: str, y: str, **more: Any) -> dict[str, Any]:
    """Return the layout of a figure with these titles of its axes; the legend stands above the plot."""
    return {
        "height": 380,
        "margin": {"l": 50, "r": 16, "t": 10, "b": 50},
        "showlegend": True,
        "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0},
        "xaxis": {"title": {"text": x}, "gridcolor": "#eee", "zeroline": False, "automargin": True},
        "yaxis": {"title": {"text": y}, "gridcolor": "#eee", "zeroline": False, "automargin": True},
        "plot_bgcolor": "white",
        "font": {"family": "system-ui, sans-serif", "size": 13},
        "hoverlabel": {"namelength": -1},
        **more,
    }
