"""Why requests cannot be served as they are wanted: too long for the model or its KV cache, or late."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from trainyard.serve.deployment import ServedModel
from trainyard.serve.errors import DoesNotFitError, ServeError
from trainyard.serve.planning.search import DeploymentSearch, answer_tokens, num_cut
from trainyard.serve.requests.request import Request, TracedRequest
from trainyard.serve.results import Results, Served
from trainyard.serve.splits import PossibleSplit
from trainyard.serve.summary import Summary

__all__ = ["MissedObjective", "alone_text", "cache_text", "check_context", "missed_objectives"]

_INF = float("inf")
_OBJECTIVES: tuple[tuple[str, Callable[[Served], float], Callable[[Request], float]], ...] = (
    ("TTFT", lambda each: each.ttft_s, lambda wanted: wanted.ttft_s),
    ("TPOT", lambda each: each.tpot_s, lambda wanted: wanted.tpot_s),
    ("E2E", lambda each: each.e2e_s, lambda wanted: wanted.e2e_s),
)


class MissedObjective(NamedTuple):
    """An objective that too few requests meet.

    Attributes
    ----------
    name : TTFT, TPOT or E2E.
    share_met : share of the requests that meet it; refused ones do not.
    factor : how many times as long it would have to be for the target share to meet it; infinite if no factor is enough.
    """

    name: str
    share_met: float
    factor: float

    def __str__(self) -> str:
        met = f"{self.name} is met by {100 * self.share_met:.1f} % of the requests"
        return met if self.factor == _INF else f"{met}, and would have to be {self.factor:.3g} times as long"


def missed_objectives(results: Results, share: float) -> tuple[MissedObjective, ...]:
    """Return the objectives that fewer requests than the target share meet, the one that is missed by most first."""
    found = []
    for name, of_served, wanted in _OBJECTIVES:
        times = [of_served(each) / wanted(each.request) for each in results.served]
        times += [_INF if wanted(each.request) < _INF else 0.0 for each in results.refused]
        if not times:
            continue
        times.sort()
        factor = times[math.ceil(share * len(times) - 1e-9) - 1]
        if factor > 1:
            found.append(MissedObjective(name, sum(each <= 1 for each in times) / len(times), factor))
    return tuple(sorted(found, key=lambda each: each.share_met))


def check_context(requests: Sequence[TracedRequest], model: ServedModel, share: float) -> None:
    """Refuse requests of which too few can be answered in full on any devices, since they are too long for the model.

    Raises
    ------
    ServeError
        If more prompts, or prompts with their answers, than may miss their objectives exceed the context of the model.
    """
    prompts = [each.request.prompt_tokens for each in requests]
    wholes = [each.request.prompt_tokens + answer_tokens(each) for each in requests]
    too_long = [num for num in prompts if num >= model.context]
    cut = [num for num in wholes if num > model.context]
    most = len(requests) - math.ceil(share * len(requests) - 1e-9)
    limit = f"{model.name} supports sequences of at most {model.context:,} tokens, prompt and answer together"
    if len(too_long) > most:
        raise ServeError(
            f"{len(too_long):,} of {len(requests):,} requests have prompts of up to {max(too_long):,} tokens; {limit}; "
            "give shorter prompts, or a model with a longer context"
        )
    if len(cut) > most:
        raise ServeError(
            f"{len(cut):,} of {len(requests):,} requests have up to {max(cut):,} tokens with their answers, which would "
            f"be cut; {limit}; give shorter answers or prompts, or a model with a longer context"
        )


def cache_text(search: DeploymentSearch, split: PossibleSplit) -> str:
    """Return why the KV cache of a split is too small for the requests, or "" if it is not with some policy."""
    rooms = []
    for choice in search.choices:
        try:
            place = split.deployment(1).sized_for([choice.policy])
        except DoesNotFitError:
            continue
        if not search.cuts_too_many(place, search.share):
            return ""
        rooms.append(place.max_model_len)
    if not rooms:
        return "the largest step of every policy leaves no memory for a KV cache"
    num, room = num_cut(search.requests, max(rooms), search.longest), max(rooms)
    return (
        f"the KV cache has room for {room:,} tokens, and {num:,} of {len(search.requests):,} requests need more with "
        "their answers"
    )


def alone_text(results: Results, summary: Summary) -> str:
    """Return how many requests meet their objectives, with the percentiles of TTFT and TPOT."""
    if results.refused_all:
        return results.refused_all
    said = [f"only {100 * summary.share_met:.1f} % of the requests meet their objectives"]
    for name, times in (("TTFT", summary.ttft), ("TPOT", summary.tpot)):
        if times.p50_s == times.p50_s:  # not NaN: some request has such a time
            said.append(f"{name} p50 {1e3 * times.p50_s:.3g} ms, p99 {1e3 * times.p99_s:.3g} ms")
    return "; ".join((*said, f"{summary.num_refused} refused"))
