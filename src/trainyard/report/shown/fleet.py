"""Runs of fleets in a session of Python and in a notebook."""

from __future__ import annotations

from functools import singledispatch

from trainyard.fleet.api import FleetComparison
from trainyard.fleet.records import FleetRun
from trainyard.fleet.study import Study
from trainyard.report.fleet_groups import parts_of
from trainyard.report.fleet_league import devices_table, league, remarks
from trainyard.report.fleet_page import fleet_page
from trainyard.report.fleet_study import study_page, study_rows
from trainyard.report.page import Table, tables_html
from trainyard.report.remarks import remark_tables
from trainyard.report.shown.undescribed import undescribed_error
from trainyard.report.units import count_text, duration_text, percent_text

__all__ = ["html_of", "page_of", "text_of"]


@singledispatch
def text_of(shown: object) -> str:
    """One to three lines with the figures that matter."""
    raise undescribed_error(shown)


@text_of.register
def _(run: FleetRun) -> str:
    if not run.jobs:
        return f"<FleetRun of {run.policy} on {run.cluster.name}: no job ran>"
    return f"<FleetRun of {run.policy} on {run.cluster.name}: {_run_text(run)}>"


@text_of.register
def _(comparison: FleetComparison) -> str:
    jobs = count_text(len(comparison.jobs), "job")
    refused = [each.text for each in comparison.cannot_run]
    lines = [f"<FleetComparison of {jobs} on {comparison.cluster.name} under {_names(comparison)}"]
    if comparison.runs:
        lines.append(f" best {comparison.best.policy}: {_run_text(comparison.best)}")
    if refused:
        lines.append(f" cannot run: {', '.join(refused)}")
    return "\n".join(lines) + ">"


@text_of.register
def _(study: Study) -> str:
    names = ", ".join(each.policy for each in study.standings) or "no policy"
    lines = [f"<Study of {names}"]
    if study.standings:
        best = study.standings[0]
        lines.append(
            f" best {best.policy}: mean JCT {duration_text(best.completion_s.mean)} "
            f"± {duration_text(best.completion_s.half_width)}"
        )
    if study.refused:
        lines.append(f" cannot run: {', '.join(each.text for each in study.refused)}")
    return "\n".join(lines) + ">"


@singledispatch
def html_of(shown: object) -> str:
    """Tables for a notebook."""
    raise undescribed_error(shown)


@html_of.register
def _(run: FleetRun) -> str:
    return tables_html([Table(run.policy, *league([run])), Table("Devices", *devices_table([run]))])


@html_of.register
def _(comparison: FleetComparison) -> str:
    runs = comparison.runs
    tables = [
        Table("League table", *league(runs, None, comparison.cannot_run), best=0 if runs else None),
        Table("Devices", *devices_table(runs)),
    ]
    return tables_html([*tables, *remark_tables(_remarks(comparison), None)])


@html_of.register
def _(study: Study) -> str:
    return tables_html([Table("Policies", *study_rows(study), best=0 if study.standings else None)])


@singledispatch
def page_of(shown: object) -> str:
    """A page with figures."""
    raise undescribed_error(shown)


@page_of.register
def _(comparison: FleetComparison) -> str:
    title = f"{count_text(len(comparison.jobs), 'job')} on {comparison.cluster.name}"
    has_what_ifs = any(run.what_if for run in comparison.runs)
    baseline = next((run for run in comparison.runs if has_what_ifs and not run.what_if), None)
    return fleet_page(
        title,
        comparison.runs,
        {"cluster": comparison.cluster.name, "best": comparison.best.policy},
        remarks=_remarks(comparison),
        cannot=comparison.cannot_run,
        baseline=baseline,
        parts=parts_of(comparison.runs, baseline),
    )


@page_of.register
def _(study: Study) -> str:
    return study_page(", ".join(each.policy for each in study.standings), study)


def _names(comparison: FleetComparison) -> str:
    return ", ".join(run.policy for run in comparison.runs) or "no policy"


def _remarks(comparison: FleetComparison) -> tuple[str, ...]:
    return remarks(comparison.runs, comparison.cannot_run, comparison.jobs, comparison.ignored)


def _run_text(run: FleetRun) -> str:
    return (
        f"{count_text(len(run.jobs), 'job')}, mean JCT {duration_text(run.mean_completion_s)}, "
        f"waiting {duration_text(run.mean_waiting_s)}, devices busy {percent_text(run.busy)}"
    )
