"""Figures of requests under several policies: latency, load over time, and the timeline of one request."""

from __future__ import annotations

import html
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainyard.report.axes import TimeAxis, layout
from trainyard.report.colors import color_of
from trainyard.report.curves import Curve, Sample, distributions, over_time
from trainyard.report.page import Figure, nice
from trainyard.report.units import seconds_text
from trainyard.serve.compare import PolicyRun
from trainyard.serve.load_over_time import Load
from trainyard.serve.request_timeline import RequestTimeline
from trainyard.serve.results import Served

__all__ = ["latencies", "loads", "one_request"]

Floats = NDArray[np.float64]

_KINDS = ("waiting", "prefill", "recompute", "decode")
_ROW_PX = 46


def latencies(runs: Sequence[PolicyRun], colors: Mapping[str, str]) -> tuple[Figure, ...]:
    """Cumulative distributions of TTFT, TPOT and the end-to-end time.

    Parameters
    ----------
    colors : of the policies.
    """

    def figure(
        heading: str, what: str, name: str, is_of: Callable[[Served], bool] = lambda each: True
    ) -> Figure:
        samples = [
            Sample(
                run.name,
                colors[run.name],
                np.array([getattr(each, name) for each in run.results.served if is_of(each)]),
            )
            for run in runs
        ]
        axes = what, "share of requests within"
        return distributions(heading, samples, axes, "", seconds_text, _common_objective(runs, name))

    return (
        figure("Time to first token (TTFT)", "time from arrival to first token", "ttft_s"),
        figure(
            "Time per output token (TPOT)",
            "mean time per token of a request, after its first",
            "tpot_s",
            lambda each: each.output_tokens > 1,
        ),
        figure("End-to-end time (E2E)", "time from arrival to last token", "e2e_s"),
    )


def _common_objective(runs: Sequence[PolicyRun], name: str) -> float | None:
    """The objective that all requests have; None if they have none, or different ones."""
    found = {getattr(each.request, name) for run in runs for each in run.results.served}
    return found.pop() if len(found) == 1 and max(found) < float("inf") else None


def loads(runs: Sequence[PolicyRun], colors: Mapping[str, str]) -> tuple[Figure, ...]:
    """Waiting and running requests and the KV cache in use over time, of runs whose load was recorded."""
    known = [(run.name, run.load) for run in runs if run.load is not None]
    if not known:
        return ()
    axis = TimeAxis(max(run.results.end_s for run in runs), None)
    part = seconds_text(max(load.part_s for _, load in known))

    def figure(heading: str, what: str, values_of: Callable[[Load], Floats], most: float = 0.0) -> Figure:
        curves = [
            Curve(name, colors[name], load.starts_s, values_of(load))
            for name, load in known
            if len(load.cache)
        ]
        return over_time(heading, what, curves, axis, part, most)

    return (
        figure("Waiting requests", "requests", lambda load: load.num_waiting),
        figure("Running requests", "requests", lambda load: load.num_running),
        figure("KV cache in use", "blocks held by requests (%)", lambda load: 100 * load.cache, 100.0),
    )


def one_request(followed: Mapping[str, RequestTimeline]) -> Figure | None:
    """The timeline of one request, a row for each policy that served it; None if none did.

    Parameters
    ----------
    followed : by policy, in the order in which they are shown.
    """
    if not followed:
        return None
    first = next(iter(followed.values())).served
    request, policies = first.request, list(followed)
    data = [
        bars for kind in _KINDS if (bars := _bars(kind, [_spans(each, kind) for each in followed.values()]))
    ]
    data += [
        points
        for name, symbol, times_of in (
            ("first token", "diamond", lambda each: (each.served.first_token_s,)),
            ("preempted", "x", lambda each: each.preempted_s),
        )
        if (points := _points(name, symbol, [_after(each, times_of(each)) for each in followed.values()]))
    ]
    drawn = layout("time since arrival (s)", "", height=120 + _ROW_PX * len(policies), barmode="overlay")
    drawn["yaxis"] |= {
        "tickvals": list(range(len(policies))),
        "ticktext": [html.escape(name) for name in policies],
        "range": [len(policies) - 0.5, -0.5],
        "showgrid": False,
        "ticksuffix": " ",
    }
    note = (
        f"Prompt of {request.prompt_tokens:,} tokens, output of {first.output_tokens:,}. Each prefill chunk is one bar; "
        "consecutive decode steps are one bar. Point at a grey bar to see why it waits. Recompute is the prefill "
        "again after a preemption."
    )
    return Figure(f"Timeline of request {request.name}", data, drawn, note)


def _spans(followed: RequestTimeline, kind: str) -> list[tuple[float, float, str]]:
    """Start and end since the arrival, and the hover text."""
    if kind == "waiting":
        spans = [(start_s, end_s, f"waiting: {why}") for start_s, end_s, why in followed.waits]
    else:
        spans = [
            (each.start_s, each.end_s, f"{kind}, {each.num_tokens:,} token{'s' * (each.num_tokens > 1)}")
            for each in followed.spans
            if each.kind == kind
        ]
    zero_s = followed.served.arrival_s
    return [(start_s - zero_s, end_s - zero_s, text) for start_s, end_s, text in spans]


def _bars(kind: str, rows: Sequence[Sequence[tuple[float, float, str]]]) -> dict[str, Any]:
    """Bars of one kind, a row for each policy; empty if there are none."""
    bars = [(row, *each) for row, spans in enumerate(rows) for each in spans]
    if not bars:
        return {}
    return {
        "type": "bar",
        "orientation": "h",
        "name": kind,
        "y": [row for row, *_ in bars],
        "base": [nice(start_s) for _, start_s, _, _ in bars],
        "x": [nice(end_s - start_s) for _, start_s, end_s, _ in bars],
        "width": 0.6,
        "marker": {"color": color_of(kind), "line": {"width": 0.5, "color": "theme:paper"}},
        "text": [f"{text}, {seconds_text(end_s - start_s)}" for _, start_s, end_s, text in bars],
        "textposition": "none",
        "hovertemplate": "%{text}",
    }


def _after(followed: RequestTimeline, times_s: Sequence[float]) -> list[float]:
    return [at_s - followed.served.arrival_s for at_s in times_s]


def _points(name: str, symbol: str, rows: Sequence[Sequence[float]]) -> dict[str, Any]:
    """Moments of one kind, a row for each policy; empty if there are none."""
    points = [(row, at_s) for row, times_s in enumerate(rows) for at_s in times_s]
    if not points:
        return {}
    return {
        "type": "scatter",
        "mode": "markers",
        "name": name,
        "x": [nice(at_s) for _, at_s in points],
        "y": [row for row, _ in points],
        "text": [f"{name}, after {seconds_text(at_s)}" for _, at_s in points],
        "hovertemplate": "%{text}",
        "marker": {
            "symbol": symbol,
            "size": 10,
            "color": "theme:ink",
            "line": {"width": 1, "color": "theme:paper"},
        },
    }
