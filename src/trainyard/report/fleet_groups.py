"""Groups of jobs that lose: users, accounts, virtual clusters, sizes and device types, compared with a baseline."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rich.table import Table

from trainyard.fleet.groups import DIMENSIONS, beside, groups, of_both
from trainyard.fleet.records import FleetRun
from trainyard.report.tables import make_table
from trainyard.report.units import duration_text

__all__ = ["Part", "groups_table", "losers", "losers_table", "parts_of"]

Columns = tuple[str, ...]
Rows = tuple[tuple[str, ...], ...]
_MOST_LOSERS = 4
# Of the mean completion time under the baseline: what is less is no loss.
_LEAST_LOSS = 1.005


class Part(NamedTuple):
    """The jobs of one group under one policy.

    Attributes
    ----------
    dimension, group : such as ``"user"`` and ``"ann"``.
    run, base : as if they were all jobs, under the policy and under the baseline.
    to_baseline : mean completion time over that under the baseline; NaN where it is not known.
    """

    dimension: str
    group: str
    policy: str
    run: FleetRun
    base: FleetRun | None
    to_baseline: float


def parts_of(runs: Sequence[FleetRun], baseline: FleetRun | None) -> tuple[Part, ...]:
    """All groups of all dimensions in which there are two, under every policy."""
    found = []
    for dimension in DIMENSIONS:
        bases = {} if baseline is None else groups(baseline, dimension)
        by_run = [groups(run, dimension) for run in runs]
        for group in dict.fromkeys(group for parts in by_run for group in parts):
            for run, parts in zip(runs, by_run, strict=True):
                if group in parts:
                    base = bases.get(group)
                    ratio = float("nan") if base is None else beside(parts[group], base)
                    found.append(Part(dimension, group, run.policy, parts[group], base, ratio))
    return tuple(found)


def groups_table(parts: Sequence[Part]) -> tuple[Columns, Rows]:
    """Columns and rows of every group under every policy."""
    columns = (
        "by", "group", "policy", "jobs", "mean JCT", "to baseline", "p99", "waiting", "slowdown", "unfair", "missed",
        "refused",
    )  # fmt: skip
    rows = []
    for part in parts:
        run, figures = part.run, ("",) * 6
        if run.jobs:
            durations = run.mean_completion_s, run.percentile_s(99), run.mean_waiting_s
            mean, p99, waiting = map(duration_text, durations)
            ratio = "" if part.base is None else f"{part.to_baseline:.2f}x"
            figures = mean, ratio, p99, waiting, f"{run.mean_slowdown:.1f}x", f"{run.worst_unfairness:.1f}x"
        counts = str(run.num_missed), str(len(run.refused))
        rows.append((part.dimension, part.group, part.policy, str(len(run.jobs)), *figures, *counts))
    return columns, tuple(rows)


def losers(parts: Sequence[Part], baseline: FleetRun) -> tuple[Columns, Rows]:
    """Columns and rows of the groups whose jobs take longest beside the baseline, a few of every policy.

    Figures are of the jobs that ended under both.
    """
    rows = []
    for policy in dict.fromkeys(part.policy for part in parts if part.policy != baseline.policy):
        own = [part for part in parts if part.policy == policy and part.to_baseline > _LEAST_LOSS]
        for part in sorted(own, key=lambda part: -part.to_baseline)[:_MOST_LOSERS]:
            assert part.base is not None
            ours, theirs = of_both(part.run, part.base)
            run, base = part.run.of(ours.tolist(), ()), part.base.of(theirs.tolist(), ())
            rows.append(
                (
                    policy,
                    f"{part.dimension} {part.group}",
                    str(len(run.jobs)),
                    f"{part.to_baseline:.2f}x",
                    f"{duration_text(base.mean_completion_s)} / {duration_text(run.mean_completion_s)}",
                    f"{duration_text(base.mean_waiting_s)} / {duration_text(run.mean_waiting_s)}",
                    f"{base.mean_slowdown:.1f}x / {run.mean_slowdown:.1f}x",
                )
            )
    return ("policy", "whose jobs", "jobs", "JCT", "mean JCT", "waiting", "slowdown"), tuple(rows)


def losers_table(parts: Sequence[Part], baseline: FleetRun) -> Table | None:
    """The same for the terminal; None if nobody loses."""
    columns, rows = losers(parts, baseline)
    return make_table(f"who loses most, {baseline.policy} / policy", columns, rows, 2) if rows else None
