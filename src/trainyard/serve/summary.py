"""A simulated run in a few numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from trainyard.serve.fairness import fairness
from trainyard.serve.results import Results, Served

__all__ = ["Distribution", "Summary"]


@dataclass(frozen=True)
class Distribution:
    """Mean and percentiles over requests, in seconds; NaN if there are none."""

    mean_s: float
    p50_s: float
    p99_s: float

    @classmethod
    def of(cls, served: Sequence[Served], what: Callable[[Served], float]) -> Distribution:
        """The distribution of one number of each request; percentiles are interpolated."""
        if not served:
            return cls(*[float("nan")] * 3)
        values = np.array([what(each) for each in served])
        return cls(float(values.mean()), *(float(each) for each in np.percentile(values, (50, 99))))


@dataclass(frozen=True)
class Summary:
    """The numbers by which runs are compared.

    Attributes
    ----------
    num_served, num_refused : number of requests.
    num_cut : number of requests of which the longest sequence that is served cuts an answer.
    ttft, tpot, e2e : time to the first token, per token after it (of requests with more than one), and to the last one.
    slo_attainment : share of all requests, refused ones included, that met all of their objectives; None where no
        request has any.
    goodput_per_s : requests that met all of their objectives, from the first arrival to the last end; None likewise.
    requests_per_s, tokens_per_s : requests served and tokens generated, from the first arrival to the last end.
    prefix_hit_rate : share of the prompt tokens that were found in the KV cache.
    num_preemptions : how often a request lost its blocks.
    fairness : Jain's index of the service that clients got while they competed; NaN where they never did.
    utilisation : share of the time, from the first arrival to the last end, in which a replica computes.
    """

    num_served: int
    num_refused: int
    num_cut: int
    ttft: Distribution
    tpot: Distribution
    e2e: Distribution
    slo_attainment: float | None
    goodput_per_s: float | None
    requests_per_s: float
    tokens_per_s: float
    prefix_hit_rate: float
    num_preemptions: int
    fairness: float
    utilisation: float

    @classmethod
    def of(cls, results: Results, num_instances: int) -> Summary:
        """The summary of a run on so many replicas."""
        served, num = results.served, len(results.served) + len(results.refused)
        came_s = [each.arrival_s for each in served]
        came_s += [each.request.arrival_s for each in results.refused if not each.request.parent]
        begin_s = min(came_s, default=0.0)
        span_s = max(results.end_s - begin_s, 0.0)
        num_met = sum(each.meets_objectives for each in served)
        requests = [*(each.request for each in served), *(each.request for each in results.refused)]
        has_objectives = any(each.has_objectives for each in requests)
        prompt_tokens = sum(each.request.prompt_tokens for each in served)
        return cls(
            len(served),
            len(results.refused),
            results.num_cut,
            Distribution.of(served, lambda each: each.ttft_s),
            Distribution.of([each for each in served if each.longest_tokens > 1], lambda each: each.tpot_s),
            Distribution.of(served, lambda each: each.e2e_s),
            _share(num_met, num) if has_objectives else None,
            _share(num_met, span_s) if has_objectives else None,
            _share(len(served), span_s),
            _share(sum(each.output_tokens for each in served), span_s),
            _share(sum(each.cached_tokens for each in served), prompt_tokens),
            results.num_preemptions,
            fairness(served),
            _share(results.busy_s, span_s * num_instances),
        )

    def numbers(self) -> dict[str, Any]:
        """Numbers that also those of a client have, by name; those of a distribution as ``ttft_mean_s``."""
        found = asdict(self)
        del found["fairness"], found["utilisation"], found["num_cut"]
        for name in ("ttft", "tpot", "e2e"):
            distribution = found.pop(name)
            found |= {f"{name}_{key}": value for key, value in distribution.items()}
        return found

    @property
    def share_met(self) -> float:
        """``slo_attainment`` for comparisons: 1 where no request has objectives, for then none missed any."""
        return 1.0 if self.slo_attainment is None else self.slo_attainment


def _share(part: float, whole: float) -> float:
    return part / whole if whole > 0 else float("nan")
