"""Runs and plans of servers in a session of Python and in a notebook."""

from __future__ import annotations

from functools import singledispatch

from trainyard.report.page import Table, tables_html
from trainyard.report.serve_league import columns_in_full, league, server_table
from trainyard.report.serve_page import serve_page
from trainyard.report.serve_plan import (
    BOTTLENECK_COLUMNS,
    bottleneck_rows,
    bottleneck_title,
    plan_facts,
    verdict,
)
from trainyard.report.serve_plan_page import serve_plan_page
from trainyard.report.shown.undescribed import undescribed_error
from trainyard.report.units import count_text, percent_text, seconds_text
from trainyard.serve.api import ServingComparison
from trainyard.serve.compare import CannotRun, PolicyRun
from trainyard.serve.planning.plan import ServingPlan

__all__ = ["html_of", "page_of", "text_of"]


@singledispatch
def text_of(shown: object) -> str:
    """One to three lines with the figures that matter."""
    raise undescribed_error(shown)


@text_of.register
def _(run: PolicyRun) -> str:
    return f"<PolicyRun of {run.name}: {_run_text(run)}>"


@text_of.register
def _(comparison: ServingComparison) -> str:
    names = ", ".join(run.name for run in comparison.runs) or "no policy"
    lines = [f"<ServingComparison of {names} on {comparison.deployment}"]
    if comparison.runs:
        lines.append(f" best {comparison.best.name}: {_run_text(comparison.best)}")
    if comparison.cannot_run:
        lines.append(f" cannot serve: {', '.join(each.name for each in comparison.cannot_run)}")
    return "\n".join(lines) + ">"


@text_of.register
def _(plan: ServingPlan) -> str:
    return f"<ServingPlan: {verdict(plan)}>"


@singledispatch
def html_of(shown: object) -> str:
    """Tables for a notebook."""
    raise undescribed_error(shown)


@html_of.register
def _(run: PolicyRun) -> str:
    return tables_html(_tables([run]))


@html_of.register
def _(comparison: ServingComparison) -> str:
    return tables_html(_tables(comparison.runs, comparison.cannot_run))


@html_of.register
def _(plan: ServingPlan) -> str:
    tables = [Table(verdict(plan), ("what", ""), tuple(plan_facts(plan)))]
    if plan.bottlenecks:
        tables.append(Table(bottleneck_title(plan), BOTTLENECK_COLUMNS, bottleneck_rows(plan)))
    return tables_html([*tables, *_tables(plan.runs)])


@singledispatch
def page_of(shown: object) -> str:
    """A page with figures."""
    raise undescribed_error(shown)


@page_of.register
def _(comparison: ServingComparison) -> str:
    facts = {"deployment": str(comparison.deployment), "best": comparison.best.name}
    return serve_page(str(comparison.deployment), comparison.runs, facts, cannot=comparison.cannot_run)


@page_of.register
def _(plan: ServingPlan) -> str:
    return serve_plan_page(str(plan.deployment), plan, {"result": verdict(plan)})


def _tables(runs: tuple[PolicyRun, ...] | list[PolicyRun], cannot: tuple[CannotRun, ...] = ()) -> list[Table]:
    columns, rows = league(runs, None, cannot)
    tables = [Table("Latency", columns_in_full(columns), rows, best=0 if len(runs) > 1 else None)]
    return [*tables, Table("Throughput and load", *server_table(runs))]


def _run_text(run: PolicyRun) -> str:
    summary = run.summary
    met = summary.slo_attainment
    share = "" if met is None else f", SLO met {percent_text(met)}"
    return (
        f"{count_text(summary.num_served, 'request')} served, {summary.num_refused:,} refused; "
        f"TTFT {seconds_text(summary.ttft.mean_s)}, TPOT {seconds_text(summary.tpot.mean_s)}, "
        f"E2E {seconds_text(summary.e2e.mean_s)}{share}"
    )
