"""Groups of jobs that lose or gain: users, accounts, virtual clusters, sizes and device types, beside a baseline."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rich.table import Table

from trainyard.fleet.groups import DIMENSIONS, beside, groups, num_not_done, of_both
from trainyard.fleet.records import FleetRun
from trainyard.report.tables import make_table
from trainyard.report.units import duration_text

__all__ = ["Part", "groups_table", "losers", "losers_table", "parts_of", "winners", "winners_table"]

Columns = tuple[str, ...]
Rows = tuple[tuple[str, ...], ...]
_MOST_NAMED = 4
# Ratio of mean completion times; a smaller change is neither a loss nor a gain.
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

    @property
    def num_not_done(self) -> int:
        """Jobs that ended under the baseline and not here: they were killed, refused or left out."""
        return 0 if self.base is None else num_not_done(self.run, self.base)


def parts_of(runs: Sequence[FleetRun], baseline: FleetRun | None) -> tuple[Part, ...]:
    """Return all groups of each dimension with at least two groups, under each policy."""
    found = []
    for dimension in DIMENSIONS:
        bases = {} if baseline is None else groups(baseline, dimension, fewest=1)
        by_run = [groups(run, dimension, fewest=1) for run in runs]
        names = dict.fromkeys(group for parts in by_run for group in parts)
        for group in names if len(names) > 1 else ():
            for run, parts in zip(runs, by_run, strict=True):
                if group in parts or group in bases:
                    base, own = bases.get(group), parts.get(group) or run.of((), ())
                    ratio = float("nan") if base is None else beside(own, base)
                    found.append(Part(dimension, group, run.policy, own, base, ratio))
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
    """Columns and rows of the groups that lose most beside the baseline, a few of each policy.

    Groups with the largest share of jobs that are not done come first, then those whose jobs take longest. Times are of
    jobs that ended under both.
    """
    own = [part for part in parts if part.num_not_done or part.to_baseline > _LEAST_LOSS]
    return _beside(parts, sorted(own, key=_loss), baseline)


def winners(parts: Sequence[Part], baseline: FleetRun) -> tuple[Columns, Rows]:
    """Columns and rows of the groups that gain most beside the baseline: all their jobs are done, and in less time."""
    own = [part for part in parts if not part.num_not_done and part.to_baseline < 1 / _LEAST_LOSS]
    return _beside(parts, sorted(own, key=lambda part: part.to_baseline), baseline)


def _loss(part: Part) -> tuple[float, float]:
    assert part.base is not None
    is_known = part.to_baseline == part.to_baseline
    return -part.num_not_done / max(1, len(part.base.jobs)), -part.to_baseline if is_known else 0.0


def _beside(parts: Sequence[Part], ranked: Sequence[Part], baseline: FleetRun) -> tuple[Columns, Rows]:
    """Columns and rows of the ranked groups beside the baseline, the first few of each policy."""
    rows, are_lost = [], any(part.num_not_done for part in ranked)
    # Names of what-ifs are long, and the table is to fit a terminal.
    columns: Columns = ("JCT", "mean JCT", "waiting", "slowdown")
    columns = columns[:-1] if any(part.run.what_if for part in parts) else columns
    for policy in dict.fromkeys(part.policy for part in parts if part.policy != baseline.policy):
        for part in [part for part in ranked if part.policy == policy][:_MOST_NAMED]:
            assert part.base is not None
            ours, theirs = of_both(part.run, part.base)
            run, base, times = part.run.of(ours.tolist(), ()), part.base.of(theirs.tolist(), ()), ("",) * 4
            if run.jobs:
                times = (
                    f"{part.to_baseline:.2f}x",
                    f"{duration_text(base.mean_completion_s)} / {duration_text(run.mean_completion_s)}",
                    f"{duration_text(base.mean_waiting_s)} / {duration_text(run.mean_waiting_s)}",
                    f"{base.mean_slowdown:.1f}x / {run.mean_slowdown:.1f}x",
                )
            lost = (str(part.num_not_done),) if are_lost else ()
            rows.append(
                (policy, f"{part.dimension} {part.group}", str(len(run.jobs)), *lost, *times[: len(columns)])
            )
    lost = ("not done",) if are_lost else ()
    return ("policy", "whose jobs", "jobs", *lost, *columns), tuple(rows)


def losers_table(parts: Sequence[Part], baseline: FleetRun) -> Table | None:
    """Table of the groups that lose most, for the terminal; None if none loses."""
    columns, rows = losers(parts, baseline)
    return make_table(f"who loses most, {baseline.policy} / policy", columns, rows, 2) if rows else None


def winners_table(parts: Sequence[Part], baseline: FleetRun) -> Table | None:
    """Table of the groups that gain most, for the terminal; None if none gains."""
    columns, rows = winners(parts, baseline)
    return make_table(f"who gains most, {baseline.policy} / policy", columns, rows, 2) if rows else None
