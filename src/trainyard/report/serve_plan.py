"""Tables of a serving plan: the deployment, its simulation, its bottleneck, and the runners-up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.table import Table

from trainyard.report.tables import facts_table, make_table
from trainyard.report.units import count_text, percent_text, seconds_text
from trainyard.serve.auto import Trial
from trainyard.serve.deployment import Deployment
from trainyard.serve.planning.frontier import FrontierPoint, frontier
from trainyard.serve.planning.plan import ServingPlan
from trainyard.serve.planning.reasons import missed_objectives
from trainyard.serve.planning.search import kind_of, pools_of, pools_text

__all__ = [
    "bottleneck_rows",
    "bottleneck_title",
    "evidence",
    "excluded_rows",
    "frontier_rows",
    "plan_document",
    "plan_facts",
    "plan_tables",
    "verdict",
]  # fmt: skip

Rows = tuple[tuple[str, ...], ...]

_MOST_SHOWN = 6

BOTTLENECK_COLUMNS = ("bottleneck", "if improved", "SLO met")
FRONTIER_COLUMNS = ("split", "concurrent requests", "tokens/s per user", "tokens/s per device")


def verdict(plan: ServingPlan) -> str:
    """One sentence: whether the objectives are met, and by which deployment."""
    place, met = plan.deployment, percent_text(plan.summary.share_met)
    wanted = percent_text(plan.share)
    if plan.is_met:
        return (
            f"{_devices_text(place)}: {place}{_pools(plan.best)}, {plan.policy}; {met} of the requests meet their "
            f"objectives (target {wanted})"
        )
    results = plan.runs[0].results
    why = results.refused_all or "; ".join(map(str, missed_objectives(results, plan.share)))
    if not why and results.num_cut:
        why = f"its KV cache cuts answers of {count_text(results.num_cut, 'request')} at {place.max_model_len:,} tokens"
    return (
        f"no deployment on these devices meets the objectives for {wanted} of the requests; {place} with {plan.policy} "
        f"comes closest, with {met}" + (f": {why}" if why else "")
    )


def _pools(trial: Trial) -> str:
    """The two kinds of replicas in parentheses, if there are two."""
    pools = pools_of(trial)
    return f" ({pools_text(pools)})" if pools is not None else ""


def plan_facts(plan: ServingPlan) -> tuple[tuple[str, str], ...]:
    """The deployment, as pairs of name and value."""
    place, model = plan.deployment, plan.deployment.model
    return (
        ("devices", f"{place.num_devices}"),
        ("replicas", f"{place.num_replicas}{_pools(plan.best)}"),
        ("split per replica", model.split),
        ("policy", plan.policy),
        ("router", plan.best.router),
        ("KV cache per replica", f"{place.cached_tokens:,} tokens"),
        ("max sequence length", f"{place.max_model_len:,} tokens{_cut(plan)}"),
        (
            "bottleneck",
            _bottleneck(plan),
        ),
        ("step time", model.source),
        ("simulated", count_text(plan.num_trials, "deployment")),
    )


def _bottleneck(plan: ServingPlan) -> str:
    if plan.bottleneck is not None:
        return plan.bottleneck.name
    if plan.bottlenecks:
        return "none of those examined: no improvement helps more requests"
    return "none: no smaller deployment could be simulated"


def _cut(plan: ServingPlan) -> str:
    num = plan.summary.num_cut
    return f", which cuts answers of {count_text(num, 'request')}" if num else ""


def evidence(trials: Sequence[Trial], most: int = _MOST_SHOWN) -> tuple[tuple[str, ...], Rows]:
    """Columns and rows of deployments with their simulated latency, one row each."""
    columns = ("devices", "replicas", "policy", "SLO met", "TTFT p50", "p99", "TPOT p50", "p99", "tokens/s")
    return columns, tuple(_trial_row(each) for each in trials[:most])


def bottleneck_title(plan: ServingPlan) -> str:
    """Heading of the bottlenecks: the deployment that is examined, and how many requests meet their objectives there."""
    assert plan.closest is not None
    place = plan.closest.deployment
    summary = plan.closest.summary
    met = percent_text(summary.share_met) if summary is not None else "none"
    which = "with fewer devices:" if plan.is_met else "of"
    return f"bottleneck {which} {place} ({_devices_text(place)}), where {met} of the requests meet their objectives"


def bottleneck_rows(plan: ServingPlan) -> Rows:
    """Rows of the bottlenecks: what is improved, how, and how many requests then meet their objectives."""
    return tuple((each.name, each.change, percent_text(each.slo_attainment)) for each in plan.bottlenecks)


def excluded_rows(plan: ServingPlan) -> Rows:
    """Rows of the splits that are ruled out, and why."""
    return tuple((str(each), each.why) for each in plan.excluded_splits)


def frontier_rows(points: Sequence[FrontierPoint]) -> Rows:
    """Rows of the Pareto frontier."""
    return tuple(
        (
            each.split,
            f"{each.num_requests:,}",
            f"{each.user_tokens_per_s:,.1f}",
            f"{each.device_tokens_per_s:,.1f}",
        )
        for each in frontier(points)
    )


def plan_tables(plan: ServingPlan) -> tuple[str | Table, ...]:
    """All tables for the terminal."""
    parts: list[str | Table] = ["", verdict(plan), "", facts_table("", plan_facts(plan)), ""]
    parts.append(
        make_table(
            _simulated_title(plan),
            *evidence(_shown(plan)),
            3,
        )
    )
    if plan.bottlenecks:
        rows = bottleneck_rows(plan)
        parts.append(make_table(bottleneck_title(plan), BOTTLENECK_COLUMNS, rows, 2))
    elif plan.is_met:
        parts.append("bottleneck: none: no smaller deployment could be simulated")
    if plan.excluded_splits:
        parts.append(make_table("splits that are ruled out", ("split", "why"), excluded_rows(plan), 2))
    title = "Pareto frontier: throughput against speed for one user, in a steady state"
    parts.append(make_table(title, FRONTIER_COLUMNS, frontier_rows(plan.points)))
    return tuple(parts)


def _simulated_title(plan: ServingPlan) -> str:
    if plan.is_met:
        return "deployments that meet the objectives: the best of each split, then others"
    return "the deployment that comes closest"


def plan_document(plan: ServingPlan) -> dict[str, Any]:
    """The plan as one JSON document."""
    best = set(frontier(plan.points))
    return {
        "is_met": plan.is_met,
        "share": plan.share,
        "best": _trial_document(plan.best),
        "step_time_from": plan.deployment.model.source,
        "described_kernels": dict(plan.deployment.model.described),
        "runners_up": [_trial_document(each) for each in plan.runners_up],
        "closest": None if plan.closest is None else _trial_document(plan.closest),
        "bottleneck": None if plan.bottleneck is None else plan.bottleneck.name,
        "bottlenecks": [each._asdict() for each in plan.bottlenecks],
        "excluded_splits": [asdict(each) for each in plan.excluded_splits],
        "frontier": [asdict(each) | {"is_best": each in best} for each in plan.points],
        "num_trials": plan.num_trials,
    }


def _shown(plan: ServingPlan) -> list[Trial]:
    """The plan, the best of every other split, and then the other runners-up."""
    found: list[Trial] = [plan.best]
    seen = {kind_of(plan.best)}
    others = []
    for each in plan.runners_up:
        if kind_of(each) in seen:
            others.append(each)
        else:
            seen.add(kind_of(each))
            found.append(each)
    return [*found, *others]


def _devices_text(place: Deployment) -> str:
    return count_text(place.num_devices, "device")


def _trial_row(trial: Trial) -> tuple[str, ...]:
    place, summary = trial.deployment, trial.summary
    assert summary is not None
    return (
        f"{place.num_devices}",
        f"{_replicas_text(trial)} x {place.model.split}",
        trial.policy,
        percent_text(summary.share_met),
        *(
            seconds_text(value) if value == value else ""
            for value in (summary.ttft.p50_s, summary.ttft.p99_s, summary.tpot.p50_s, summary.tpot.p99_s)
        ),
        f"{summary.tokens_per_s:,.0f}",
    )


def _replicas_text(trial: Trial) -> str:
    pools = pools_of(trial)
    return f"{trial.deployment.num_replicas}" if pools is None else f"({pools_text(pools)})"


def _trial_document(trial: Trial) -> dict[str, Any]:
    place, pools = trial.deployment, pools_of(trial)
    return {
        "num_devices": place.num_devices,
        "num_replicas": place.num_replicas,
        "prefill_replicas": None if pools is None else pools[0],
        "tensor_parallel": place.model.tensor_parallel,
        "pipeline_stages": place.model.pipeline_stages,
        "data_parallel": place.model.data_parallel,
        "num_blocks": place.num_blocks,
        "block_tokens": place.block_tokens,
        "max_model_len": place.max_model_len,
        "policy": trial.policy,
        "router": trial.router,
        "summary": None if trial.summary is None else asdict(trial.summary),
    }
