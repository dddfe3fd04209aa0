"""A run of the load generator in numbers, by the names of ``vllm bench serve``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from trainyard.serve.run.bench.load_generator import BenchRun, RequestResult

__all__ = ["failures", "request_lists", "summary"]

Number = int | float | None


def summary(run: BenchRun) -> dict[str, Number]:
    """The numbers by which runs are compared; NaN where there is nothing to count.

    ============================== =======================================================================================
    duration                       seconds, from when the first request is due to the last answer
    completed, failed              requests with a complete answer, and others
    total_input_tokens,            tokens of prompts and answers, of the requests that were answered
    total_output_tokens
    request_throughput             requests answered per second
    request_goodput                of these, those within all of their objectives; None if no request has any
    output_throughput,             tokens of answers per second; with those of prompts
    total_token_throughput
    mean, median, std, p99 of      milliseconds from sending a request to its first token; mean for each token after it;
    ttft_ms, tpot_ms, itl_ms,      between the parts of an answer; to the end of the answer. TPOT is of answers with more
    e2el_ms                        than one token
    max_concurrent_requests        requests that were open at the same time
    mean, p99, max of lateness_ms  milliseconds that requests were sent later than they were due
    num_shorter_answers            answers with fewer tokens than in the trace
    ============================== =======================================================================================
    """
    answered = [each for each in run.results if each.failure is None]
    per_s = 1.0 / run.duration_s
    num_in = sum(each.prompt_tokens for each in answered)
    num_out = sum(each.output_tokens for each in answered)
    has_objectives = any(each.request.has_objectives for each in run.results)
    found: dict[str, Number] = {
        "duration": run.duration_s,
        "completed": len(answered),
        "failed": len(run.results) - len(answered),
        "total_input_tokens": num_in,
        "total_output_tokens": num_out,
        "request_throughput": len(answered) * per_s,
        "request_goodput": (
            sum(each.meets_objectives for each in answered) * per_s if has_objectives else None
        ),
        "output_throughput": num_out * per_s,
        "total_token_throughput": (num_in + num_out) * per_s,
    }
    for name, times_s in (
        ("ttft", [each.ttft_s for each in answered]),
        ("tpot", [each.tpot_s for each in answered if each.output_tokens > 1]),
        ("itl", [time_s for each in answered for time_s in each.itl_s]),
        ("e2el", [each.e2e_s for each in answered]),
    ):
        found |= {f"{how}_{name}_ms": value for how, value in _distribution(times_s).items()}
    late = _distribution([each.lateness_s for each in run.results])
    return found | {
        "max_concurrent_requests": _most_open(answered),
        "mean_lateness_ms": late["mean"],
        "p99_lateness_ms": late["p99"],
        "max_lateness_ms": 1e3 * max(each.lateness_s for each in run.results),
        "num_shorter_answers": sum(each.output_tokens < each.wanted_tokens for each in answered),
    }


def request_lists(run: BenchRun) -> dict[str, list[Any]]:
    """Every request, in the order of the trace: seconds and tokens, None where it was not answered.

    Names are those of ``vllm bench serve``; ``start_times`` are seconds from the beginning of the run, and
    ``queue_times`` how much later a request was sent than it was due.
    """
    found: dict[str, list[Any]] = {
        "input_lens": [each.prompt_tokens for each in run.results],
        "output_lens": [0 if each.failure else each.output_tokens for each in run.results],
        "start_times": [each.sent_s for each in run.results],
        "queue_times": [each.lateness_s for each in run.results],
    }
    for name, of in (("ttfts", "ttft_s"), ("itls", "itl_s"), ("latencies", "e2e_s")):
        found[name] = [None if each.failure else getattr(each, of) for each in run.results]
    found["errors"] = [
        "" if each.failure is None else f"{each.failure.kind}: {each.failure.message}" for each in run.results
    ]
    return found


def failures(run: BenchRun) -> tuple[tuple[str, int, str], ...]:
    """Kinds of failures, most frequent first: its name, how many, and what the first of them says."""
    found = [each.failure for each in run.results if each.failure is not None]
    first = {each.kind: each.message for each in reversed(found)}
    return tuple((kind, num, first[kind]) for kind, num in Counter(each.kind for each in found).most_common())


def _distribution(times_s: Sequence[float]) -> dict[str, float]:
    """Milliseconds; percentiles are interpolated."""
    if not times_s:
        return dict.fromkeys(("mean", "median", "std", "p99"), float("nan"))
    values = 1e3 * np.array(times_s)
    return {
        "mean": float(values.mean()),
        "median": float(np.median(values)),
        "std": float(values.std()),
        "p99": float(np.percentile(values, 99)),
    }


def _most_open(answered: Sequence[RequestResult]) -> int:
    """At any time; one that ends when another begins is not open with it."""
    events = sorted([(each.sent_s, 1) for each in answered] + [(each.end_s, -1) for each in answered])
    return max(np.cumsum([change for _, change in events]).tolist(), default=0)
