"""Policies over many workloads: the table, the page, and the numbers for programs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.table import Table as RichTable

from trainyard.fleet.study import Interval, Standing
from trainyard.report.page import PALETTE, Figure, Table, html_page
from trainyard.report.tables import make_table

__all__ = ["standing_document", "study_page", "study_table"]

_NOTE = "Intervals hold the mean of all workloads in 95 cases of 100."


_UNITS = (("d", 86_400.0), ("h", 3_600.0), ("min", 60.0), ("s", 1.0))


def _time(interval: Interval) -> str:
    """In the unit that suits the mean."""
    unit, size_s = next((u for u in _UNITS if interval.mean >= 2 * u[1]), _UNITS[-1])
    return f"{interval.mean / size_s:.1f} ± {interval.half_width / size_s:.1f} {unit}"


def _ratio(interval: Interval) -> str:
    return f"{interval.mean:.2f} ± {interval.half_width:.2f}"


def _rows(standings: Sequence[Standing]) -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]:
    """Refusals have a column only where there are any."""
    some_refuse = any(each.num_refused.mean > 0 for each in standings)
    rows = tuple(
        (
            each.policy,
            _time(each.completion_s),
            "best" if i == 0 else _ratio(each.to_best),
            _time(each.p99_s),
            _ratio(each.utilisation),
            _ratio(each.wronged),
            *((_ratio(each.num_refused),) if some_refuse else ()),
        )
        for i, each in enumerate(standings)
    )
    columns = ("policy", "mean JCT", "to best", "p99", "used", "wronged")
    return (*columns, *(("refused",) if some_refuse else ())), rows


def _more_rows(standings: Sequence[Standing]) -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]:
    rows = tuple(
        (
            each.policy,
            _time(each.median_s),
            _time(each.queueing_s),
            _time(each.makespan_s),
            _ratio(each.num_missed),
        )
        for each in standings
    )
    return ("policy", "median JCT", "queueing", "makespan", "missed deadlines"), rows


def study_table(title: str, standings: Sequence[Standing]) -> RichTable:
    """One row per policy, best first."""
    return make_table(title, *_rows(standings))


def study_page(title: str, standings: Sequence[Standing]) -> str:
    """A self-contained page with mean completion times and their intervals."""
    bars = {
        "type": "bar",
        "x": [each.policy for each in standings],
        "y": [each.completion_s.mean / 3600 for each in standings],
        "error_y": {"type": "data", "array": [each.completion_s.half_width / 3600 for each in standings]},
        "marker": {"color": [PALETTE[i % len(PALETTE)] for i in range(len(standings))]},
    }
    layout = {"yaxis": {"title": {"text": "mean completion time (h)"}, "rangemode": "tozero"}}
    figure = Figure("Mean completion time", [bars], layout, _NOTE)
    best = standings[0].policy if standings else ""
    return html_page(
        title,
        {"best": best},
        [figure],
        [Table("Standings", *_rows(standings)), Table("More figures", *_more_rows(standings))],
    )


def standing_document(standing: Standing) -> dict[str, Any]:
    """A policy in numbers: means and half-widths of 95 % intervals."""
    figures = {name: value for name, value in vars(standing).items() if isinstance(value, Interval)}
    return {"policy": standing.policy, **{name: vars(interval) for name, interval in figures.items()}}
