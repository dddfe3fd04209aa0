"""Policies over many workloads: the table, the page, and the numbers for programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table as RichTable

from trainyard.fleet.study import Interval, Standing
from trainyard.report.page import PALETTE, Figure, Table, html_page
from trainyard.report.tables import make_table
from trainyard.report.units import number_text

__all__ = ["standing_document", "study_page", "study_tables"]

_NOTE = "Intervals hold the mean of all workloads in 95 cases of 100."


_UNITS = (("d", 86_400.0), ("h", 3_600.0), ("min", 60.0), ("s", 1.0))

Rows = tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]
"""Columns and rows of a table."""


def _time(interval: Interval) -> str:
    """In the unit that suits the mean."""
    unit, size_s = next((u for u in _UNITS if interval.mean >= 2 * u[1]), _UNITS[-1])
    return f"{interval.mean / size_s:.1f} ± {interval.half_width / size_s:.1f} {unit}"


def _large(interval: Interval) -> str:
    """A ratio that may be in the thousands."""
    return f"{number_text(interval.mean, 3)} ± {number_text(interval.half_width, 3)}"


def _ratio(interval: Interval) -> str:
    return f"{interval.mean:.2f} ± {interval.half_width:.2f}"


def _rows(standings: Sequence[Standing]) -> Rows:
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


def _more_rows(standings: Sequence[Standing]) -> Rows:
    rows = tuple(
        (
            each.policy,
            _time(each.median_s),
            _time(each.queueing_s),
            _time(each.makespan_s),
            _large(each.unfairness),
            _ratio(each.num_missed),
        )
        for each in standings
    )
    return ("policy", "median JCT", "queueing", "makespan", "unfair", "missed deadlines"), rows


def _rows_by_virtual_cluster(standings: Sequence[Standing]) -> Rows:
    rows = [
        (
            name,
            each.policy,
            _time(figures["completion_s"]),
            _time(figures["p99_s"]),
            _time(figures["queueing_s"]),
            _large(figures["unfairness"]),
            _ratio(figures["num_missed"]),
        )
        for each in standings
        for name, figures in each.virtual_clusters.items()
    ]
    columns = ("virtual cluster", "policy", "mean JCT", "p99", "queueing", "unfair", "missed deadlines")
    return columns, tuple(sorted(rows, key=lambda row: row[0]))


def study_tables(title: str, standings: Sequence[Standing]) -> tuple[RichTable, RichTable]:
    """One row per policy, best first, in two tables."""
    return make_table(title, *_rows(standings)), make_table("", *_more_rows(standings))


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
    tables = [Table("Standings", *_rows(standings)), Table("More figures", *_more_rows(standings))]
    if any(each.virtual_clusters for each in standings):
        tables.append(Table("By virtual cluster", *_rows_by_virtual_cluster(standings)))
    return html_page(title, {"best": best}, [figure], tables)


def standing_document(standing: Standing) -> dict[str, Any]:
    """A policy in numbers: means and half-widths of 95 % intervals."""
    parts = standing.virtual_clusters
    return {
        "policy": standing.policy,
        **_document({name: each for name, each in vars(standing).items() if isinstance(each, Interval)}),
        "virtual_clusters": {name: _document(figures) for name, figures in parts.items()},
    }


def _document(figures: Mapping[str, Interval]) -> dict[str, Any]:
    return {name: vars(interval) for name, interval in figures.items()}
