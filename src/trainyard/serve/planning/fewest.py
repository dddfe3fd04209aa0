"""The fewest replicas of a split that meet the objectives: all alike, or some for prompts and the others for decodes.

More replicas are assumed to be no worse than fewer. Where prompts and decodes have replicas of their own, neither waits
for the other. So first tokens are assumed to depend on the replicas for prompts alone, and further tokens on those for
decodes alone: if too many of one kind are late, more replicas of this kind are needed, whatever the others are. Zhong et
al., "DistServe: Disaggregating Prefill and Decoding for Goodput-optimized Large Language Model Serving", OSDI 2024,
algorithm 1, finds both numbers apart for the same reason. Here a ratio counts only if it meets the objectives where both
kinds are simulated together, with the transfer of the KV cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TypeVar

from trainyard.serve.auto import PolicyChoice, Trial
from trainyard.serve.planning.objectives import Shortfall
from trainyard.serve.planning.search import DeploymentSearch, order_of
from trainyard.serve.router import PrefillDecode
from trainyard.serve.splits import PossibleSplit

__all__ = ["best_share", "fewest_in_pools", "fewest_pools", "fewest_replicas", "first_that_meets"]

Found = TypeVar("Found")


def fewest_replicas(search: DeploymentSearch, split: PossibleSplit, most: int) -> tuple[Trial, ...]:
    """Return the trials that meet the objectives with the fewest replicas of a split, best first.

    The first is the best of all policies. A policy is left out if it is no better than one before it.

    Parameters
    ----------
    most : replicas that are tried at most. They are tried first, since most policies need more.
    """
    trials: list[Trial] = []
    for choice in search.choices:
        if not trials:
            trial = first_that_meets(search, split, (choice,), 0, most)
            trials = [trial] if trial is not None else []
            continue
        num = trials[0].deployment.num_replicas
        if num > 1 and (trial := search.met(split.deployment(num - 1), choice)) is not None:
            trials = [_between(search, split, choice, 0, trial)]
        elif (trial := search.met(split.deployment(num), choice, at_least=best_share(trials))) is not None:
            trials.append(trial)
    return tuple(sorted(trials, key=order_of))


def first_that_meets(
    search: DeploymentSearch, split: PossibleSplit, choices: Iterable[PolicyChoice], failed: int, most: int
) -> Trial | None:
    """Return the trial with the fewest replicas of the first policy that meets the objectives; None if none does.

    Parameters
    ----------
    failed : replicas with which no policy meets them.
    most : replicas that are tried at most.
    """
    for choice in choices:
        if most > failed and (trial := search.met(split.deployment(most), choice)) is not None:
            return _between(search, split, choice, failed, trial)
    return None


def fewest_in_pools(
    search: DeploymentSearch,
    split: PossibleSplit,
    choices: Iterable[PolicyChoice],
    most: int,
    tied: Sequence[Trial] = (),
) -> tuple[Trial, ...]:
    """Return the trials that meet the objectives with the fewest replicas, some for prompts and the others for decodes.

    Parameters
    ----------
    choices : policies that are tried, each on all replicas.
    most : replicas that are tried at most.
    tied : trials of other splits. With as many devices as these, only a better deployment is of use.
    """
    trials: list[Trial] = []
    for choice in choices:
        found = fewest_pools(partial(_judged, search, split, choice, (*tied, *trials)), most)
        if found:
            num = found[0].deployment.num_replicas
            trials = [*(each for each in trials if each.deployment.num_replicas == num), *found]
            most = num
    return tuple(sorted(trials, key=order_of))


def fewest_pools(judged: Callable[[int, int], Found | Shortfall], most: int) -> list[Found]:
    """Return what meets the objectives with the fewest replicas in two pools; empty if nothing does.

    Parameters
    ----------
    judged : takes the replicas for prompts and those for decodes; returns what was found, or why the objectives are not
        met.
    most : replicas of both that are tried at most.
    """
    prefill = decode = 1  # fewer than these are too few, whatever the others are
    num = 2
    while num <= most:
        met: list[Found] = []
        for first in range(prefill, num):
            if first < prefill or num - first < decode:
                continue
            found = judged(first, num - first)
            if found is Shortfall.FIRST_TOKENS:
                prefill = max(prefill, first + 1)
            elif found is Shortfall.FURTHER_TOKENS:
                decode = max(decode, num - first + 1)
            elif not isinstance(found, Shortfall):
                met.append(found)
        if met:
            return met
        num = max(num + 1, prefill + decode)
    return []


def _judged(
    search: DeploymentSearch,
    split: PossibleSplit,
    choice: PolicyChoice,
    others: Sequence[Trial],
    prefill: int,
    decode: int,
) -> Trial | Shortfall:
    """Simulate a ratio; with as many devices as others that meet the objectives, only a better one matters."""
    place = split.deployment(prefill + decode)
    tied = [each for each in others if each.deployment.num_devices == place.num_devices]
    share = max(search.share, best_share(tied))
    return search.judged(place, choice, str(PrefillDecode(prefill)), share, names_cause=True)


def best_share(trials: Iterable[Trial]) -> float:
    """Return the largest share of requests that meet their objectives under any of some trials; 0 without any."""
    return max((each.summary.share_met for each in trials if each.summary is not None), default=0.0)


def _between(
    search: DeploymentSearch, split: PossibleSplit, choice: PolicyChoice, failed: int, trial: Trial
) -> Trial:
    """Bisect between replicas that do not meet the objectives and those of a trial that does."""
    while trial.deployment.num_replicas - failed > 1:
        num = (trial.deployment.num_replicas + failed) // 2
        found = search.met(split.deployment(num), choice)
        trial, failed = (trial, num) if found is None else (found, failed)
    return trial
