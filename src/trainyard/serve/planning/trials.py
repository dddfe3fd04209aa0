"""Order simulated deployments, and tell which replicas compute prompts and which compute decodes."""

from __future__ import annotations

from collections.abc import Iterable

from trainyard.serve.auto import Trial, better
from trainyard.serve.planning.objectives import reaches
from trainyard.serve.router import PrefillDecode, router_of

__all__ = [
    "best_trial",
    "deployment_text",
    "devices_text",
    "first_of_kinds",
    "kind_of",
    "largest_share_met",
    "meets",
    "order_of",
    "pools_of",
    "pools_text",
]


def order_of(trial: Trial) -> tuple[float, ...]:
    """Return the sort key of trials: fewest devices first, then those under which most requests meet their objectives."""
    return (trial.deployment.num_devices, *better("slo attainment")(trial))


def best_trial(trials: Iterable[Trial]) -> Trial | None:
    """Return the trial under which most requests meet their objectives, the first of equal ones; None without any."""
    return min(trials, key=better("slo attainment"), default=None)


def largest_share_met(trials: Iterable[Trial]) -> float:
    """Return the largest share of requests that meet their objectives under any of the trials; 0 without any."""
    return max((each.summary.share_met for each in trials if each.summary is not None), default=0.0)


def meets(trial: Trial, share: float) -> bool:
    """Return whether at least this share of the requests met their objectives."""
    return trial.summary is not None and reaches(trial.summary.share_met, share)


def pools_of(trial: Trial) -> tuple[int, int] | None:
    """Return the replicas for prompts and those for decodes; None where every replica computes both."""
    router = router_of(trial.router)
    if not isinstance(router, PrefillDecode):
        return None
    num = router.prefill_replicas
    return num, trial.deployment.num_replicas - num


def pools_text(trial: Trial) -> str:
    """Return the replicas for prompts and those for decodes as text; empty where every replica computes both."""
    pools = pools_of(trial)
    return "" if pools is None else f"{pools[0]} prefill + {pools[1]} decode"


def deployment_text(trial: Trial) -> str:
    """Return the deployment as text, with its pools if there are two."""
    pools = pools_text(trial)
    return f"{trial.deployment} ({pools})" if pools else str(trial.deployment)


def devices_text(num: int) -> str:
    """Return a number of devices as text."""
    return f"{num:,} device{'s' * (num != 1)}"


def kind_of(trial: Trial) -> tuple[str, bool]:
    """Return the split of a trial, and whether it has replicas for prompts and others for decodes."""
    return trial.deployment.model.split, pools_of(trial) is not None


def first_of_kinds(trials: Iterable[Trial]) -> list[Trial]:
    """Return the first trial of each kind, in their order."""
    first: dict[tuple[str, bool], Trial] = {}
    for each in trials:
        first.setdefault(kind_of(each), each)
    return list(first.values())
