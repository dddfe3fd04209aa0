"""Policies over many workloads: the table, the page, and the numbers for programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table as RichTable

from trainyard.fleet.study import Interval, Standing, Study
from trainyard.report.axes import layout, unit_of
from trainyard.report.colors import series_color
from trainyard.report.fleet_league import ignored_lines
from trainyard.report.page import Figure, Table, html_page
from trainyard.report.remarks import remark_tables
from trainyard.report.tables import make_table
from trainyard.report.units import number_text

__all__ = ["standing_document", "study_page", "study_tables"]

_NOTE = "Intervals hold the mean of all workloads in 95 cases of 100."

Rows = tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]
"""Columns and rows of a table."""


def _time(interval: Interval) -> str:
    """Write a time in the unit that suits the mean."""
    unit, size_s = unit_of(interval.mean)
    return f"{interval.mean / size_s:.1f} ± {interval.half_width / size_s:.1f} {unit}"


def _large(interval: Interval) -> str:
    """A ratio that may be in the thousands."""
    # What differs by rounding only is the same.
    half_width = interval.half_width if interval.half_width > 1e-9 * abs(interval.mean) else 0.0
    return f"{number_text(interval.mean, 3)} ± {number_text(half_width, 3)}"


def _ratio(interval: Interval) -> str:
    return f"{interval.mean:.2f} ± {interval.half_width:.2f}"


def study_rows(study: Study) -> Rows:
    """Refusals and jobs that were left out have a column only where there are any."""
    standings = study.standings
    columns = ["policy", "mean JCT", "to best", f"to {study.baseline}", "p99", "wronged"]
    more = [
        (heading, name)
        for heading, name in (("refused", "num_refused"), ("left out", "num_left_out"))
        if any(getattr(each, name).mean > 0 for each in standings)
    ]
    columns += [heading for heading, _ in more]
    rows = [
        (
            each.policy,
            _time(each.completion_s),
            "best" if i == 0 else _ratio(each.to_best),
            "" if each.policy == study.baseline else _ratio(each.to_baseline),
            _time(each.p99_s),
            _ratio(each.wronged),
            *(_ratio(getattr(each, name)) for _, name in more),
        )
        for i, each in enumerate(standings)
    ]
    rows += [(each.text, "refused", *("",) * (len(columns) - 2)) for each in study.refused]
    return tuple(columns), tuple(rows)


def _more_rows(standings: Sequence[Standing]) -> Rows:
    rows = tuple(
        (
            each.policy,
            _time(each.median_s),
            _time(each.waiting_s),
            _time(each.first_wait_s),
            _large(each.slowdown),
            _large(each.unfairness),
            _ratio(each.num_missed),
        )
        for each in standings
    )
    return ("policy", "median JCT", "waiting", "first wait", "slowdown", "unfair", "missed"), rows


def _rows_of_devices(standings: Sequence[Standing]) -> Rows:
    rows = tuple(
        (each.policy, each.placement, _time(each.makespan_s), _ratio(each.busy), _ratio(each.useful))
        for each in standings
    )
    return ("policy", "placement", "makespan", "busy", "useful"), rows


def _rows_by_group(standings: Sequence[Standing]) -> Rows:
    names = dict.fromkeys(
        (dimension, group)
        for each in standings
        for dimension, groups in each.groups.items()
        for group in groups
    )
    rows = [
        (
            dimension,
            group,
            each.policy,
            _time(figures["completion_s"]),
            _ratio(figures["to_baseline"]) if "to_baseline" in figures else "",
            _time(figures["p99_s"]),
            _time(figures["waiting_s"]),
            _large(figures["slowdown"]),
            _large(figures["unfairness"]),
            _ratio(figures["num_missed"]),
        )
        for dimension, group in names
        for each in standings
        if (figures := each.groups.get(dimension, {}).get(group))
    ]
    columns = (
        "by", "group", "policy", "mean JCT", "to baseline", "p99", "waiting", "slowdown", "unfair", "missed deadlines",
    )  # fmt: skip
    return columns, tuple(rows)


def study_tables(title: str, study: Study) -> tuple[RichTable | str, ...]:
    """One row per policy, best first, in three tables; and why policies cannot run."""
    return (
        make_table(title, *study_rows(study)),
        make_table("", *_more_rows(study.standings)),
        make_table("", *_rows_of_devices(study.standings), text_columns=2),
        *(f"{each.text} refused: {each.why}" for each in study.refused),
        *ignored_lines(study.ignored),
    )


def study_page(title: str, study: Study) -> str:
    """A self-contained page with mean completion times and their intervals."""
    standings = study.standings
    half_widths = [each.completion_s.half_width / 3600 for each in standings]
    bars = {
        "type": "bar",
        "x": [each.policy for each in standings],
        "y": [each.completion_s.mean / 3600 for each in standings],
        "error_y": {"type": "data", "array": half_widths, "color": "theme:ink"},
        "marker": {"color": [series_color(i) for i in range(len(standings))]},
    }
    drawn = layout("", "mean completion time (h)", showlegend=False)
    drawn["yaxis"]["rangemode"] = "tozero"
    figure = Figure("Mean completion time", [bars], drawn, _NOTE)
    best = standings[0].policy if standings else ""
    tables = [
        Table("Standings", *study_rows(study), best=0),
        Table("More figures", *_more_rows(standings)),
        Table("Devices", *_rows_of_devices(standings)),
    ]
    if study.refused:
        why = tuple((each.text, each.why) for each in study.refused)
        tables.append(Table("Policies that cannot run", ("policy", "why"), why))
    tables += remark_tables(ignored_lines(study.ignored), None)
    if any(each.groups for each in standings):
        tables.append(Table(f"Whose jobs wait, beside {study.baseline}", *_rows_by_group(standings)))
    return html_page(title, {"best": best}, [tables[0], figure, *tables[1:]])


def standing_document(standing: Standing) -> dict[str, Any]:
    """A policy in numbers: means and half-widths of 95 % intervals."""
    by = {
        dimension.replace(" ", "_"): {group: _document(figures) for group, figures in groups.items()}
        for dimension, groups in standing.groups.items()
    }
    return {
        "policy": standing.policy,
        "placement": standing.placement,
        **_document({name: each for name, each in vars(standing).items() if isinstance(each, Interval)}),
        "by": by,
    }


def _document(figures: Mapping[str, Interval]) -> dict[str, Any]:
    return {name: vars(interval) for name, interval in figures.items()}
