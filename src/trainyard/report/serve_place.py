"""Placements of many models: what is asked for, the league of policies, and what is on which device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.table import Table

from trainyard.report.tables import make_table
from trainyard.report.units import bytes_text, percent_text, seconds_text
from trainyard.serve.placing.compare import CannotPlace, PlacementRun
from trainyard.serve.placing.decisions import ModelOnDevices, PlacedModels
from trainyard.serve.placing.problem import PlacingProblem

__all__ = [
    "device_rows",
    "league_rows",
    "model_rows",
    "place_document",
    "place_tables",
    "replica_text",
    "slo_rows",
]

Columns = tuple[str, ...]
Rows = tuple[tuple[str, ...], ...]


def model_rows(problem: PlacingProblem) -> tuple[Columns, Rows]:
    """Columns and rows of what is to be placed.

    The last column is what one device serves of a model alone, in batches that take half of its objective at most.
    """
    columns = ("model", "requests/s", "objective", "weights", "one request", "max per device")
    return columns, tuple(
        (
            each.name,
            f"{rate:,.1f}",
            seconds_text(each.objective_s),
            bytes_text(each.forward.weight_bytes),
            seconds_text(each.forward.batching.latency(1)),
            f"{each.forward.batching.best_batch(each.objective_s / 2)[1]:,.0f}/s",
        )
        for each, rate in zip(problem.models, problem.rates_per_s, strict=True)
    )


def league_rows(
    problem: PlacingProblem, runs: Sequence[PlacementRun], cannot: Sequence[CannotPlace]
) -> tuple[Columns, Rows]:
    """Columns and rows of policies, best first: SLO attainment, and mean latency within the objective."""
    columns = ("policy", "SLO met", "mean latency", "devices", "replicas")
    rows: list[tuple[str, ...]] = [
        (
            run.name,
            percent_text(run.placed.slo_attainment),
            seconds_text(run.placed.mean_latency_s) if sum(run.placed.num_good) else "",
            f"{run.placed.num_devices} of {problem.num_devices}",
            f"{len(run.placed.replicas)}",
        )
        for run in runs
    ]
    rows += [(each.name, "cannot place", *("",) * (len(columns) - 2)) for each in cannot]
    return columns, tuple(rows)


def slo_rows(problem: PlacingProblem, runs: Sequence[PlacementRun]) -> tuple[Columns, Rows]:
    """Columns and rows of the share of each model's requests within their objective, under each policy."""
    return ("model", *(run.name for run in runs)), tuple(
        (
            each.name,
            *(
                percent_text(run.placed.num_good[i] / run.placed.num_asked[i])
                if run.placed.num_asked[i]
                else ""
                for run in runs
            ),
        )
        for i, each in enumerate(problem.models)
    )


def device_rows(placed: PlacedModels) -> tuple[Columns, Rows]:
    """Columns and rows of what is on which devices; a column for the time of a cycle if any device has one."""
    groups: dict[tuple[int, ...], list[ModelOnDevices]] = {}
    for each in placed.replicas:
        groups.setdefault(each.devices, []).append(each)
    columns = ("devices", "models", "cycle")[: 3 if any(each.cycle_s for each in placed.replicas) else 2]
    rows = tuple(
        (
            ", ".join(map(str, devices)),
            ", ".join(map(replica_text, replicas)),
            seconds_text(replicas[0].cycle_s) if replicas[0].cycle_s else "",
        )[: len(columns)]
        for devices, replicas in sorted(groups.items())
    )
    return columns, rows


def replica_text(placed: ModelOnDevices) -> str:
    """A model, how it is split, and its batch in a cycle."""
    return f"{placed.replica} x {placed.batch}" if placed.cycle_s else str(placed.replica)


def place_tables(
    title: str, problem: PlacingProblem, runs: Sequence[PlacementRun], cannot: Sequence[CannotPlace]
) -> tuple[str | Table, ...]:
    """Return the tables for the terminal."""
    parts: list[str | Table] = [title, ""]
    parts.append(make_table("models", *model_rows(problem)))
    parts.append(make_table("policies, best first", *league_rows(problem, runs, cannot)))
    if runs:
        parts.append(make_table("SLO met, by model", *slo_rows(problem, runs)))
    parts += [make_table(f"placed by {run.name}", *device_rows(run.placed), 2) for run in runs]
    return (*parts, *(f"{each.name} cannot place them: {each.why}" for each in cannot))


def place_document(
    problem: PlacingProblem, runs: Sequence[PlacementRun], cannot: Sequence[CannotPlace]
) -> dict[str, Any]:
    """Return the document of a placement, in numbers."""
    return {
        "num_devices": problem.num_devices,
        "device_bytes": problem.device_bytes,
        "models": [
            {
                "name": each.name,
                "rate_per_s": rate,
                "objective_s": each.objective_s,
                "weight_bytes": each.forward.weight_bytes,
                "batches": each.forward.batching.batches,
                "latency_s": each.forward.batching.latency_s,
                "splits": [
                    {
                        **shape._asdict(),
                        "stage_s": times,
                        "stage_bytes": profile.device_bytes(shape),
                    }
                    for shape, times in profile.stage_s.items()
                ],
            }
            for each, rate, profile in zip(
                problem.models, problem.rates_per_s, problem.grouped.models, strict=True
            )
        ],
        "runs": [
            {
                "policy": run.name,
                "slo_attainment": run.placed.slo_attainment,
                "num_devices": run.placed.num_devices,
                "mean_latency_s": run.placed.mean_latency_s,
                "num_asked": run.placed.num_asked,
                "num_good": run.placed.num_good,
                "total_latency_s": run.placed.total_latency_s,
                "replicas": [_replica_document(each) for each in run.placed.replicas],
            }
            for run in runs
        ],
        "cannot_place": [asdict(each) for each in cannot],
    }


def _replica_document(placed: ModelOnDevices) -> dict[str, Any]:
    replica = placed.replica
    return {
        "model": replica.model,
        "devices": placed.devices,
        "pipeline_stages": replica.pipeline_stages,
        "tensor_parallel": replica.tensor_parallel,
        "plan": replica.plan.to_text() if replica.plan is not None else "",
        "batch": placed.batch,
        "cycle_s": placed.cycle_s,
    }
