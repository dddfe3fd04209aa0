"""A run of the load generator: tables for the terminal, and every request as CSV."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.table import Table

from trainyard.report.csv_file import write_csv
from trainyard.report.tables import facts_table, make_table
from trainyard.report.units import seconds_text
from trainyard.serve.run.bench.load_generator import BenchRun, RequestResult
from trainyard.serve.run.bench.request_format import RequestFormat
from trainyard.serve.run.bench.summary import failures

__all__ = ["bench_tables", "format_text", "write_results"]

_COLUMNS = (
    "name", "client", "due_s", "sent_s", "prompt_tokens", "output_tokens", "ttft_s", "tpot_s", "e2e_s",
    "meets_objectives", "failure", "message",
)  # fmt: skip
_LATENCIES = {"TTFT": "ttft", "TPOT": "tpot", "ITL": "itl", "E2E": "e2el"}


def bench_tables(run: BenchRun, found: Mapping[str, Any]) -> tuple[Table, ...]:
    """Tables of throughput, of latency, and of failures if there are any.

    TTFT is the time from sending a request to its first token, TPOT the mean time for each token after it, ITL the time
    between parts of an answer, and E2E the time to the end of the answer.

    Parameters
    ----------
    found : the summary of the run.
    """
    tables = [facts_table("", _facts(run, found)), _latency_table(found)]
    if failed := failures(run):
        rows = [(kind, message, f"{num:,}") for kind, num, message in failed]
        tables.append(
            make_table("requests that failed", ("kind", "the first one's message", "requests"), rows, 2)
        )
    return tuple(tables)


def format_text(format: RequestFormat) -> tuple[str, str]:
    """Say in which form prompts and lengths of answers are sent to the server."""
    prompts = "tokens" if format.sends_tokens else "text of about as many tokens"
    lengths = (
        "as in the trace (ignore_eos)"
        if format.fixes_length
        else "at most as in the trace (max_tokens): the server refuses ignore_eos"
    )
    return prompts, lengths


def write_results(path: Path, run: BenchRun) -> None:
    """Write a CSV with a line for every request, in the order of the trace; what is not known is empty."""
    write_csv(path, _COLUMNS, (_row(each) for each in run.results))


def _row(each: RequestResult) -> tuple[Any, ...]:
    own, failure = each.request, each.failure
    meets = each.meets_objectives if own.has_objectives else None
    if failure is not None:
        of_answer: tuple[Any, ...] = (own.prompt_tokens, *(None,) * 4)
    else:
        of_answer = (each.prompt_tokens, each.output_tokens, each.ttft_s, each.tpot_s, each.e2e_s)
    why = ("", "") if failure is None else (failure.kind, failure.message)
    return (own.name, own.client, each.due_s, each.sent_s, *of_answer, meets, *why)


def _facts(run: BenchRun, found: Mapping[str, Any]) -> list[tuple[str, str]]:
    prompts, lengths = format_text(run.format)
    facts = [
        ("answered", f"{found['completed']:,} of {len(run.results):,} requests"),
        ("duration", seconds_text(found["duration"])),
        ("requests/s", _rate(found["request_throughput"])),
        ("tokens/s", f"{_rate(found['output_throughput'])} of answers"),
        ("", f"{_rate(found['total_token_throughput'])} with prompts"),
        (
            "tokens",
            f"{found['total_input_tokens']:,} of prompts, {found['total_output_tokens']:,} of answers",
        ),
        ("concurrent", f"{found['max_concurrent_requests']:,} requests at most"),
        (
            "sent late by",
            f"{_time(found['p99_lateness_ms'])} (p99), {_time(found['max_lateness_ms'])} at most",
        ),
        ("prompts", prompts),
        ("answers", lengths),
    ]
    if found["request_goodput"] is not None:
        facts.insert(3, ("goodput", f"{_rate(found['request_goodput'])} requests/s within their objectives"))
    if not run.format.includes_usage:
        facts.append(
            ("counted", "by this client, a token for each part of an answer: the server counts none")
        )
    return facts


def _latency_table(found: Mapping[str, Any]) -> Table:
    hows = ("mean", "median", "p99", "std")
    rows = [
        (shown, *(_time(found[f"{how}_{name}_ms"]) for how in hows)) for shown, name in _LATENCIES.items()
    ]
    return make_table("latency of the requests that were answered", ("", *hows), rows)


def _time(time_ms: float) -> str:
    return seconds_text(time_ms / 1e3) if time_ms == time_ms else ""  # NaN where nothing was answered


def _rate(per_s: float) -> str:
    return f"{per_s:,.2f}" if per_s < 100 else f"{per_s:,.0f}"
