"""A plan for serving: what it is, what is simulated of it, what bounds it, and what else would do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.table import Table

from trainyard.report.tables import facts_table, make_table
from trainyard.report.units import percent_text, seconds_text
from trainyard.serve.auto import Trial
from trainyard.serve.deployment import Deployment
from trainyard.serve.planning.frontier import FrontierPoint, frontier
from trainyard.serve.planning.plan import ServingPlan
from trainyard.serve.splits import split_text

__all__ = [
    "evidence", "frontier_rows", "limit_rows", "limit_title", "plan_document", "plan_facts", "plan_tables",
    "refused_rows", "verdict",
]  # fmt: skip

Rows = tuple[tuple[str, ...], ...]

_MOST_SHOWN = 6


def verdict(plan: ServingPlan) -> str:
    """In a sentence, whether the objectives are met, and where."""
    place, goodput = plan.deployment, percent_text(plan.summary.goodput)
    wanted = percent_text(plan.share)
    if plan.is_met:
        return (
            f"{_devices_text(place)}: {place}, {plan.policy}; {goodput} of the "
            f"requests meet their objectives, {wanted} were to"
        )
    return (
        f"no deployment on these devices meets the objectives for {wanted} of the requests; {place} with {plan.policy} "
        f"comes closest, with {goodput}"
    )


def plan_facts(plan: ServingPlan) -> tuple[tuple[str, str], ...]:
    """What is to be deployed."""
    place, model = plan.deployment, plan.deployment.model
    room = place.num_blocks * place.block_tokens
    return (
        ("devices", f"{place.num_devices}"),
        ("replicas", f"{place.num_replicas}"),
        ("split of each", split_text(model.tensor_parallel, model.pipeline_stages)),
        ("policy", plan.policy),
        ("router", plan.best.router),
        ("cache of each", f"{room:,} tokens"),
        ("longest sequence", f"{place.max_model_len:,} tokens"),
        ("bound by", plan.limits[0].name if plan.limits else "the size of a device"),
        ("seconds of a step", model.source),
        ("simulated", f"{plan.num_trials} deployments"),
    )


def evidence(trials: Sequence[Trial], most: int = _MOST_SHOWN) -> tuple[tuple[str, ...], Rows]:
    """Columns and rows of what was simulated of the plan and others."""
    columns = ("devices", "replicas", "policy", "goodput", "TTFT p50", "p99", "TPOT p50", "p99", "tokens/s")
    return columns, tuple(_trial_row(each) for each in trials[:most])


def limit_title(plan: ServingPlan) -> str:
    """Which deployment is looked at, and how it does."""
    assert plan.closest is not None
    place = plan.closest.deployment
    summary = plan.closest.summary
    goodput = percent_text(summary.goodput) if summary is not None else "none"
    fewer = "what bounds it: with fewer devices, " if plan.is_met else "what prevents it: "
    return f"{fewer}{place} ({_devices_text(place)}) meets the objectives of {goodput}"


def limit_rows(plan: ServingPlan) -> Rows:
    """What would help, most first."""
    return tuple((each.name, each.change, percent_text(each.goodput)) for each in plan.limits)


def refused_rows(plan: ServingPlan) -> Rows:
    """Splits that will not do, and why."""
    return tuple((str(each), each.why) for each in plan.refused)


def frontier_rows(points: Sequence[FrontierPoint]) -> Rows:
    """Steady states that no other one is better than in both."""
    return tuple(
        (
            split_text(each.tensor_parallel, each.pipeline_stages),
            f"{each.num_requests:,}",
            f"{each.user_tokens_per_s:,.1f}",
            f"{each.device_tokens_per_s:,.1f}",
        )
        for each in frontier(points)
    )


def plan_tables(plan: ServingPlan) -> tuple[str | Table, ...]:
    """For the terminal."""
    parts: list[str | Table] = ["", verdict(plan), "", facts_table("", plan_facts(plan)), ""]
    parts.append(make_table("simulated: the best of each split, then others", *evidence(_shown(plan)), 3))
    if plan.limits:
        rows = limit_rows(plan)
        parts.append(make_table(limit_title(plan), ("bound", "if", "goodput"), rows, 2))
    elif plan.is_met:
        parts.append("what bounds it: nothing smaller could be simulated")
    if plan.refused:
        parts.append(make_table("splits that will not do", ("split", "why"), refused_rows(plan), 2))
    columns = ("split", "requests at once", "tokens/s of a user", "tokens/s of a device")
    parts.append(make_table("frontier, in a steady state", columns, frontier_rows(plan.points)))
    return tuple(parts)


def plan_document(plan: ServingPlan) -> dict[str, Any]:
    """In numbers."""
    best = set(frontier(plan.points))
    return {
        "is_met": plan.is_met,
        "share": plan.share,
        "best": _trial_document(plan.best),
        "runners_up": [_trial_document(each) for each in plan.runners_up],
        "closest": None if plan.closest is None else _trial_document(plan.closest),
        "limits": [each._asdict() for each in plan.limits],
        "refused": [asdict(each) for each in plan.refused],
        "frontier": [asdict(each) | {"is_best": each in best} for each in plan.points],
        "num_trials": plan.num_trials,
    }


def _shown(plan: ServingPlan) -> list[Trial]:
    """The plan, the best of every other split, and then the other runners-up."""
    found: list[Trial] = [plan.best]
    seen = {_split_of(plan.deployment)}
    others = []
    for each in plan.runners_up:
        if _split_of(each.deployment) in seen:
            others.append(each)
        else:
            seen.add(_split_of(each.deployment))
            found.append(each)
    return [*found, *others]


def _devices_text(place: Deployment) -> str:
    return f"{place.num_devices} device{'s' if place.num_devices > 1 else ''}"


def _split_of(place: Deployment) -> str:
    return split_text(place.model.tensor_parallel, place.model.pipeline_stages)


def _trial_row(trial: Trial) -> tuple[str, ...]:
    place, summary = trial.deployment, trial.summary
    assert summary is not None
    return (
        f"{place.num_devices}",
        f"{place.num_replicas} x {_split_of(place)}",
        trial.policy,
        percent_text(summary.goodput),
        *(
            seconds_text(value) if value == value else ""
            for value in (summary.ttft.p50_s, summary.ttft.p99_s, summary.tpot.p50_s, summary.tpot.p99_s)
        ),
        f"{summary.tokens_per_s:,.0f}",
    )


def _trial_document(trial: Trial) -> dict[str, Any]:
    place = trial.deployment
    return {
        "num_devices": place.num_devices,
        "num_replicas": place.num_replicas,
        "tensor_parallel": place.model.tensor_parallel,
        "pipeline_stages": place.model.pipeline_stages,
        "num_blocks": place.num_blocks,
        "block_tokens": place.block_tokens,
        "max_model_len": place.max_model_len,
        "policy": trial.policy,
        "router": trial.router,
        "summary": None if trial.summary is None else asdict(trial.summary),
    }
