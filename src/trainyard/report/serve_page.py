"""One self-contained HTML page about policies on the same requests: latency, load over time, and one request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from trainyard.reading.left_out import LeftOut
from trainyard.report.colors import series_color
from trainyard.report.page import Figure, Table, html_page
from trainyard.report.remarks import remark_tables
from trainyard.report.serve_figures import latencies, loads, one_request
from trainyard.report.serve_league import (
    clients_table,
    columns_in_full,
    league,
    server_table,
)
from trainyard.serve.compare import CannotRun, PolicyRun, ranked_policies
from trainyard.serve.request_timeline import RequestTimeline

__all__ = ["serve_page"]

_MOST_REFUSED = 200


def serve_page(
    title: str,
    runs: Sequence[PolicyRun],
    facts: Mapping[str, str],
    *,
    followed: Mapping[str, RequestTimeline] | None = None,
    left_out: LeftOut | None = None,
    baseline: PolicyRun | None = None,
    cannot: Sequence[CannotRun] = (),
) -> str:
    """Show latency, throughput, load over time, the timeline of one request, clients, and refused requests.

    Parameters
    ----------
    runs : of different policies on the same requests and deployment.
    facts : shown at the top, by name.
    followed : one request, by policy.
    left_out : rows of the trace that gave no request, and what is to be said of how it was read.
    baseline : the run with which the others are compared.
    cannot : policies that could not serve.
    """
    order = ranked_policies(runs)
    colors = {run.name: series_color(i) for i, run in enumerate(order)}
    columns, rows = league(order, baseline, cannot)
    sections: list[Figure | Table] = [
        Table("Latency", columns_in_full(columns), rows, best=0),
        Table("Throughput and load", *server_table(order)),
        *remark_tables([f"{each.name} cannot serve: {each.why}" for each in cannot], left_out),
        *latencies(order, colors),
        *loads(order, colors),
    ]
    by_policy = {run.name: followed[run.name] for run in order if run.name in followed} if followed else {}
    if (timeline := one_request(by_policy)) is not None:
        sections.append(timeline)
    columns, rows = clients_table(order)
    if rows:
        sections.append(Table("Clients", columns_in_full(columns), rows))
    return html_page(title, facts, [*sections, *_refused(order)], interactive=True)


def _refused(runs: Sequence[PolicyRun]) -> list[Table]:
    """Refused requests and why; only the first ones if there are many."""
    rows = [
        (run.name, each.request.name, each.request.client, each.why)
        for run in runs
        for each in run.results.refused
    ]
    if not rows:
        return []
    first = f", the first {_MOST_REFUSED} of {len(rows):,}" if len(rows) > _MOST_REFUSED else ""
    header = ("policy", "request", "client", "why")
    return [Table(f"Refused requests{first}", header, tuple(rows[:_MOST_REFUSED]))]
