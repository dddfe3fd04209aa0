"""The real step beside the predicted one: op by op, rank by rank, as a table, a page and a trace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import median
from typing import Any

import numpy as np

from trainyard.engine.builder import TaskGraphBuilder
from trainyard.engine.timeline import Timeline
from trainyard.job.plan import PIPELINE, Plan
from trainyard.job.run.step.recorder import Recorded
from trainyard.job.simulation.op_prices import PredictedOp
from trainyard.job.simulation.result import Simulation
from trainyard.report.page import Figure, Table, html_page
from trainyard.report.timeline_page import tasks_figure
from trainyard.report.trace import chrome_trace
from trainyard.report.units import seconds_text

__all__ = ["OpTimes", "RankTimes", "StepProfile", "profile_page", "profile_trace", "step_profile"]

OP_COLUMNS = ("rank", "routine", "op", "calls", "predicted", "measured", "difference")
RANK_COLUMNS = ("rank", "computing, predicted", "computing, measured", "rest, predicted", "rest, measured")
_MOST_ROWS = 200
_CATEGORIES = {"F": "forward", "B": "backward", "W": "weight_gradient"}


@dataclass(frozen=True)
class OpTimes:
    """Seconds of one op in a step.

    Attributes
    ----------
    rank : pipeline rank; measured seconds are the mean of its ranks.
    routine : that the op is of: a stage and a kind of action (``0F``), or a part of the step's end.
    title : its address.
    calls : in a step, which ``predicted_s`` and ``measured_s`` are of together.
    """

    rank: int
    routine: str
    title: str
    calls: int
    predicted_s: float
    measured_s: float

    @property
    def difference_s(self) -> float:
        """Measured less predicted."""
        return self.measured_s - self.predicted_s


@dataclass(frozen=True)
class RankTimes:
    """Seconds of a pipeline rank in a step: in ops that compute or send, and the rest, in which it waits."""

    rank: int
    predicted_s: float
    measured_s: float
    predicted_rest_s: float
    measured_rest_s: float


@dataclass(frozen=True, eq=False)
class StepProfile:
    """A real step beside the predicted one.

    Attributes
    ----------
    ops : the largest differences first.
    ranks : by pipeline rank.
    timeline : of the last recorded step, a device for each rank.
    """

    ops: tuple[OpTimes, ...]
    ranks: tuple[RankTimes, ...]
    timeline: Timeline

    def as_dict(self) -> dict[str, Any]:
        """Return a dictionary for JSON."""
        ops = [{**asdict(op), "difference_s": op.difference_s} for op in self.ops]
        return {"ops": ops, "ranks": [asdict(rank) for rank in self.ranks]}

    def op_rows(self, most: int = _MOST_ROWS) -> tuple[tuple[str, ...], ...]:
        """The largest differences in words."""
        return tuple(
            (str(op.rank), op.routine, op.title, str(op.calls), seconds_text(op.predicted_s),
             seconds_text(op.measured_s), f"{'+' if op.difference_s > 0 else '-'}{seconds_text(abs(op.difference_s))}")
            for op in self.ops[:most]
        )  # fmt: skip

    def rank_rows(self) -> tuple[tuple[str, ...], ...]:
        """The ranks in words."""
        return tuple(
            (str(r.rank), *map(seconds_text, (r.predicted_s, r.measured_s, r.predicted_rest_s, r.measured_rest_s)))
            for r in self.ranks
        )  # fmt: skip


def step_profile(
    plan: Plan,
    simulation: Simulation,
    predicted: Mapping[tuple[int, str], Mapping[str, PredictedOp]],
    recorded: Sequence[Sequence[Sequence[Recorded]]],
) -> StepProfile:
    """Compare recorded steps with the prediction.

    Parameters
    ----------
    predicted : by pipeline rank and routine, then by op; see `trainyard.job.simulate.predicted_ops`.
    recorded : by rank, then by step; of each op the median over the steps is taken.
    """
    pipeline_ranks = [plan.coordinate(rank)[PIPELINE] for rank in range(plan.num_ranks)]
    measured = [_op_seconds(steps) for steps in recorded]
    ops, ranks = [], []
    for pipeline in range(plan.pipeline):
        own = [m for m, of in zip(measured, pipeline_ranks, strict=True) if of == pipeline]
        steps = [s for s, of in zip(recorded, pipeline_ranks, strict=True) if of == pipeline]
        found = [
            OpTimes(pipeline, routine, op.title, calls, calls * op.seconds, _mean(each[routine, name][1] for each in own))
            for (routine, name), (calls, _) in own[0].items()
            if (op := predicted.get((pipeline, routine), {}).get(name)) is not None
        ]  # fmt: skip
        ops += found
        predicted_s, measured_s = (
            sum(getattr(op, part) for op in found) for part in ("predicted_s", "measured_s")
        )
        step_s = median(step[-1].end_s - step[0].start_s for each in steps for step in each)
        ranks.append(
            RankTimes(pipeline, predicted_s, measured_s, simulation.step_s - predicted_s, step_s - measured_s)
        )
    ops.sort(key=lambda op: -abs(op.difference_s))
    return StepProfile(tuple(ops), tuple(ranks), _timeline(recorded, predicted, pipeline_ranks))


def _op_seconds(steps: Sequence[Sequence[Recorded]]) -> dict[tuple[str, str], tuple[int, float]]:
    """Return calls and seconds of each op in a step, by routine and name."""
    of_steps: dict[tuple[str, str], list[float]] = {}
    calls: dict[tuple[str, str], int] = {}
    for i, step in enumerate(steps):
        for op in step:
            key = op.routine, op.op
            seconds = of_steps.setdefault(key, [0.0] * len(steps))
            seconds[i] += op.end_s - op.start_s
            calls[key] = calls.get(key, 0) + (i == 0)
    return {key: (calls[key], median(seconds)) for key, seconds in of_steps.items()}


def _mean(values: Any) -> float:
    return float(np.mean(list(values)))


def _timeline(
    recorded: Sequence[Sequence[Sequence[Recorded]]],
    predicted: Mapping[tuple[int, str], Mapping[str, PredictedOp]],
    pipeline_ranks: Sequence[int],
) -> Timeline:
    """Return the last recorded step as a timeline."""
    builder, starts, ends = TaskGraphBuilder(), list[float](), list[float]()
    began_s = min(steps[-1][0].start_s for steps in recorded)
    for rank, steps in enumerate(recorded):
        lane = builder.add_resource(f"rank {rank}", builder.add_device(f"rank {rank}, measured"))
        for op in steps[-1]:
            known = predicted.get((pipeline_ranks[rank], op.routine), {}).get(op.op)
            title = f"{op.action} {known.title if known else op.op.replace('_', ' ')}"
            category = _category(op) if known else "other"
            builder.add_task(op.end_s - op.start_s, resources=[lane], label=title, category=category)
            starts.append(op.start_s - began_s)
            ends.append(op.end_s - began_s)
    graph = builder.build()
    none = np.full(graph.num_tasks, -1, np.int64)
    order = np.arange(graph.num_tasks, dtype=np.int64)
    return Timeline(graph, np.array(starts), np.array(ends), none, order, order)


def _category(op: Recorded) -> str:
    return _CATEGORIES.get(op.routine[-1:], "forward" if op.routine == "totals" else "optimizer")


def profile_page(plan: Plan, simulation: Simulation, profile: StepProfile) -> str:
    """Draw the predicted and the real step one below the other, with tables of ranks and of the largest differences."""
    facts = {
        "step time, predicted": seconds_text(simulation.step_s),
        "step time, measured": seconds_text(profile.timeline.makespan_s),
    }
    sections: list[Figure | Table] = [
        replace(tasks_figure(simulation.timeline), heading="Predicted step"),
        replace(tasks_figure(profile.timeline), heading="Measured step"),
        Table("Seconds of each pipeline rank", RANK_COLUMNS, profile.rank_rows()),
        Table("Ops, the largest differences first", OP_COLUMNS, profile.op_rows()),
    ]
    return html_page(f"{plan.model}: predicted and measured step", facts, sections, interactive=True)


def profile_trace(simulation: Simulation, profile: StepProfile) -> dict[str, Any]:
    """Return both steps as one trace that Perfetto and chrome://tracing open, the predicted one first."""
    predicted, measured = chrome_trace(simulation.timeline), chrome_trace(profile.timeline)
    first = 1 + max(event["pid"] for event in predicted["traceEvents"])
    moved = [{**event, "pid": event["pid"] + first} for event in measured["traceEvents"]]
    return {**predicted, "traceEvents": predicted["traceEvents"] + moved}
