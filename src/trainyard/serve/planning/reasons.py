"""Find the reasons why requests miss their objectives: they are too long for the model or its KV cache, or late."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from trainyard.serve.deployment import ServedModel
from trainyard.serve.errors import DoesNotFitError, ServeError
from trainyard.serve.planning.objectives import most_missed
from trainyard.serve.planning.search import DeploymentSearch
from trainyard.serve.requests.request import Request, TracedRequest
from trainyard.serve.results import Results, Served
from trainyard.serve.splits import PossibleSplit
from trainyard.serve.summary import Summary

__all__ = [
    "MissedObjective",
    "check_request_lengths",
    "missed_objectives",
    "served_alone_text",
    "small_cache_text",
]

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
    needed_factor : by which the objective would have to be longer for the target share to meet it; infinite if none is
        enough.
    """

    name: str
    share_met: float
    needed_factor: float

    def __str__(self) -> str:
        met = f"{self.name} is met by {100 * self.share_met:.1f} % of the requests"
        return (
            met
            if self.needed_factor == _INF
            else f"{met}, and would have to be {self.needed_factor:.3g} times as long"
        )


def missed_objectives(results: Results, share: float) -> tuple[MissedObjective, ...]:
    """Return the objectives that fewer requests than the target share meet, beginning with the one that fewest meet."""
    found = []
    for name, of_served, wanted in _OBJECTIVES:
        times = [of_served(each) / wanted(each.request) for each in results.served]
        times += [_INF if wanted(each.request) < _INF else 0.0 for each in results.refused]
        if not times:
            continue
        times.sort()
        factor = times[len(times) - most_missed(len(times), share) - 1]
        if factor > 1:
            found.append(MissedObjective(name, sum(each <= 1 for each in times) / len(times), factor))
    return tuple(sorted(found, key=lambda each: each.share_met))


def check_request_lengths(requests: Sequence[TracedRequest], model: ServedModel, share: float) -> None:
    """Refuse requests if too many are so long for the model that no devices could answer them in full.

    Raises
    ------
    ServeError
        If more prompts, or prompts with their answers, than may miss their objectives exceed the context of the model.
    """
    prompts = [each.request.prompt_tokens for each in requests]
    wholes = [each.request.prompt_tokens + each.longest_answer_tokens for each in requests]
    too_long = [num for num in prompts if num >= model.context]
    cut = [num for num in wholes if num > model.context]
    most = most_missed(len(requests), share)
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


def small_cache_text(search: DeploymentSearch, split: PossibleSplit) -> str:
    """Return why the KV cache of a split is too small for the requests; "" if it is large enough with some policy."""
    rooms = []
    for choice in search.choices:
        try:
            place = split.deployment(1).sized_for([choice.policy])
        except DoesNotFitError:
            continue
        if not search.cuts_too_many_answers(place, search.share):
            return ""
        rooms.append(place.max_model_len)
    if not rooms:
        return "the largest step of every policy leaves no memory for a KV cache"
    room = max(rooms)
    return (
        f"the KV cache has room for {room:,} tokens, and {search.num_cut(room):,} of {len(search.requests):,} requests "
        "need more with their answers"
    )


def served_alone_text(results: Results, summary: Summary) -> str:
    """Return how many requests meet their objectives, with the percentiles of TTFT and TPOT."""
    if results.refused_all:
        return results.refused_all
    said = [f"only {100 * summary.share_met:.1f} % of the requests meet their objectives"]
    for name, times in (("TTFT", summary.ttft), ("TPOT", summary.tpot)):
        if times.p50_s == times.p50_s:  # not NaN: some request has such a time
            said.append(f"{name} p50 {1e3 * times.p50_s:.3g} ms, p99 {1e3 * times.p99_s:.3g} ms")
    return "; ".join((*said, f"{summary.num_refused} refused"))
