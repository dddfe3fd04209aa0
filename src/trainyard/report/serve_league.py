"""Policies on the same requests, ranked: tables for the terminal, and the JSON document of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from rich.table import Table

from trainyard.report.serve_requests import request_columns
from trainyard.report.tables import make_table
from trainyard.report.units import count_text, percent_text, seconds_text
from trainyard.serve.compare import CannotRun, PolicyRun, ranked_policies
from trainyard.serve.summary import Summary

__all__ = [
    "clients_table",
    "columns_in_full",
    "league",
    "refusal_lines",
    "run_document",
    "serve_tables",
    "server_table",
]

Columns = tuple[str, ...]
Rows = tuple[tuple[str, ...], ...]
_Cell = tuple[str, Callable[[PolicyRun], str]]
_MOST_NAMED = 3
_MOST_CLIENTS = 50


def league(
    runs: Sequence[PolicyRun], baseline: PolicyRun | None = None, cannot: Sequence[CannotRun] = ()
) -> tuple[Columns, Rows]:
    """Columns and rows of the latency of requests, best policy first, then the policies that could not serve.

    E2E is the time from the arrival of a request to its last token, TTFT to its first one, and TPOT the mean time per
    token after that.
    """
    order = ranked_policies(runs)
    cells: list[_Cell] = [
        ("E2E mean", lambda run: _time(run.summary.e2e.mean_s)),
        ("to best", lambda run: _ratio(run, order[0])),
    ]
    if baseline is not None:
        cells.append((f"to {baseline.name}", lambda run: _ratio(run, baseline)))
    cells += [
        ("p50", lambda run: _time(run.summary.e2e.p50_s)),
        ("p99", lambda run: _time(run.summary.e2e.p99_s)),
        ("TTFT mean", lambda run: _time(run.summary.ttft.mean_s)),
        ("p50", lambda run: _time(run.summary.ttft.p50_s)),
        ("p99", lambda run: _time(run.summary.ttft.p99_s)),
        ("TPOT mean", lambda run: _time(run.summary.tpot.mean_s)),
        ("p99", lambda run: _time(run.summary.tpot.p99_s)),
    ]
    rows = [(run.name, *(cell(run) for _, cell in cells)) for run in order]
    rows += [(each.name, "cannot serve", *("",) * (len(cells) - 1)) for each in cannot]
    return ("policy", *(name for name, _ in cells)), tuple(rows)


def columns_in_full(columns: Columns) -> Columns:
    """The same columns, of which ``p99`` after ``TTFT mean`` says whose percentile it is: a page has room for it."""
    found, measure = [], ""
    for column in columns:
        first = column.split(" ")[0]
        measure = first if first.isupper() else measure
        found.append(f"{measure} {column}" if column in ("p50", "p99") else column)
    return tuple(found)


def server_table(runs: Sequence[PolicyRun]) -> tuple[Columns, Rows]:
    """Columns and rows of throughput, cache and load, in the same order.

    "SLO met", the share of all requests that met their objectives, and the goodput, how many of them there were per
    second, stand where any has objectives, and fairness where there are several clients. "Prefix hits" is the share of
    prompt tokens that were found in the KV cache.
    """
    order = ranked_policies(runs)
    cells: list[_Cell] = [
        ("served", lambda run: f"{run.summary.num_served:,}"),
        ("refused", lambda run: f"{run.summary.num_refused:,}"),
    ]
    if has_objectives(runs):
        cells.append(("SLO met", lambda run: _share(run.summary.slo_attainment)))
        cells.append(("goodput", lambda run: _rate(run.summary.goodput_per_s)))
    cells += [
        ("requests/s", lambda run: _rate(run.summary.requests_per_s)),
        ("tokens/s", lambda run: _rate(run.summary.tokens_per_s)),
        ("preemptions", lambda run: f"{run.summary.num_preemptions:,}"),
        ("prefix hits", lambda run: _share(run.summary.prefix_hit_rate)),
        ("busy", lambda run: _share(run.summary.utilisation)),
    ]
    if len(clients(runs)) > 1:
        cells.append(("fairness", lambda run: _index(run.summary.fairness)))
    rows = tuple((run.name, *(cell(run) for _, cell in cells)) for run in order)
    return ("policy", *(name for name, _ in cells)), rows


def clients_table(runs: Sequence[PolicyRun]) -> tuple[Columns, Rows]:
    """Columns and rows of the latency that each client gets, most requests first; no rows if there is one client."""
    names = clients(runs)
    order, with_objectives = ranked_policies(runs), has_objectives(runs)
    columns: Columns = ("client", "policy", "served", "refused", "TTFT mean", "TPOT mean", "E2E mean", "p99")
    columns = (*columns, "SLO met") if with_objectives else columns
    if len(names) < 2:
        return columns, ()
    parts = {run.name: run.results.by_client() for run in order}
    rows = []
    for client in names[:_MOST_CLIENTS]:
        for run in order:
            found = Summary.of(parts[run.name][client], 1)
            times = found.ttft.mean_s, found.tpot.mean_s, found.e2e.mean_s, found.e2e.p99_s
            row = (client, run.name, f"{found.num_served:,}", f"{found.num_refused:,}", *map(_time, times))
            rows.append((*row, _share(found.slo_attainment)) if with_objectives else row)
    return columns, tuple(rows)


def serve_tables(
    title: str,
    runs: Sequence[PolicyRun],
    baseline: PolicyRun | None = None,
    cannot: Sequence[CannotRun] = (),
) -> tuple[Table, Table]:
    """Two tables with a row per policy, best first: latency, and throughput."""
    return make_table(title, *league(runs, baseline, cannot)), make_table("", *server_table(runs))


def refusal_lines(runs: Sequence[PolicyRun], cannot: Sequence[CannotRun] = ()) -> tuple[str, ...]:
    """Lines about policies that cannot serve, about refused requests (how many, and why the first of them), and about cut
    answers."""
    return (*(f"{each.name} cannot serve: {each.why}" for each in cannot), *_refused(runs), *_cut(runs))


def run_document(run: PolicyRun, baseline: PolicyRun | None = None) -> dict[str, Any]:
    """A run in numbers, by client, and request by request.

    Parameters
    ----------
    baseline : the run with which it is compared.
    """
    of_clients = run.results.by_client()
    return {
        "policy": run.name,
        **run.summary.numbers(),
        "to_baseline": None if baseline is None else run.summary.e2e.mean_s / baseline.summary.e2e.mean_s,
        "fairness": run.summary.fairness,
        "utilisation": run.summary.utilisation,
        "num_cut": run.summary.num_cut,
        "num_steps": run.results.num_steps,
        "busy_s": run.results.busy_s,
        "clients": [
            {"client": client, **Summary.of(part, 1).numbers()} for client, part in of_clients.items()
        ],
        "refused": [{"request": each.request.name, "why": each.why} for each in run.results.refused],
        "requests": request_columns(run),
    }


def clients(runs: Sequence[PolicyRun]) -> tuple[str, ...]:
    """Names of all clients, those with most requests first."""
    if not runs:
        return ()
    found = runs[0].results.by_client()
    return tuple(sorted(found, key=lambda name: -len(found[name].served) - len(found[name].refused)))


def has_objectives(runs: Sequence[PolicyRun]) -> bool:
    """Return whether any request has objectives."""
    return any(run.summary.slo_attainment is not None for run in runs)


def _refused(runs: Sequence[PolicyRun]) -> Iterator[str]:
    policies: dict[str, list[str]] = {}
    for run in ranked_policies(runs):
        refused, num = run.results.refused, run.summary.num_served + run.summary.num_refused
        if refused:
            said = "; ".join(f"{each.request.name} ({each.why})" for each in refused[:_MOST_NAMED])
            more = f"; and {len(refused) - _MOST_NAMED:,} more" if len(refused) > _MOST_NAMED else ""
            what = f"{len(refused):,} of {num:,} requests: {said}{more}"
            policies.setdefault(what, []).append(run.name)
    for what, names in policies.items():
        yield f"{', '.join(names)} refused {what}"


def _cut(runs: Sequence[PolicyRun]) -> Iterator[str]:
    num = max((run.summary.num_cut for run in runs), default=0)
    if num:
        yield f"answers of {count_text(num, 'request')} are cut at the max sequence length"


def _time(seconds: float) -> str:
    return seconds_text(seconds) if seconds == seconds else ""  # NaN where nothing was served


def _share(share: float | None) -> str:
    if share is None:  # no request has objectives
        return "-"
    return percent_text(share) if share == share else ""


def _rate(per_s: float | None) -> str:
    if per_s is None:
        return "-"
    return f"{per_s:,.2f}" if per_s < 100 else f"{per_s:,.0f}" if per_s == per_s else ""


def _index(index: float) -> str:
    return f"{index:.3f}" if index == index else ""  # NaN where nobody competed


def _ratio(run: PolicyRun, other: PolicyRun) -> str:
    ratio = run.summary.e2e.mean_s / other.summary.e2e.mean_s
    return f"{ratio:.2f}x" if ratio == ratio else ""
