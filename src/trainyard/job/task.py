"""Task: the work to be planned, and the setting in which a strategy plans it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch

from trainyard.hardware.cluster import Cluster
from trainyard.job.plan import DATA, Plan, PlanError
from trainyard.job.schedules import make_schedule
from trainyard.program.capture import batch_rows, capture
from trainyard.program.model import Model
from trainyard.program.placement import Shard
from trainyard.program.program import Program


@dataclass(frozen=True, eq=False)
class Task:
    """One training step of a model: its batch is all rows of one optimizer step.

    Attributes
    ----------
    model : captured on as many rows as a microbatch has, when a plan asks for it.
    dtype : compute precision, ``float32``, ``bfloat16`` or ``float16``.
    """

    model: Model
    dtype: str = "float32"
    _programs: dict[int, Program] = field(default_factory=dict, repr=False)

    @property
    def num_rows(self) -> int:
        """Rows of one step."""
        return batch_rows(self.model.batch)

    def program(self, num_rows: int) -> Program:
        """The program of a microbatch of this many rows (on all data-parallel ranks together); captured once."""
        if num_rows not in self._programs:
            self._programs[num_rows] = capture(self.model, num_rows, getattr(torch, self.dtype))
        return self._programs[num_rows]

    def coupling(self) -> str | None:
        """Why the batch must not be split into microbatches, in one sentence; None where it may be."""
        return None


@dataclass(frozen=True, eq=False)
class Setting:
    """What a strategy decides on: the work and the place."""

    task: Task
    cluster: Cluster


Strategy = Callable[[Setting, Plan], Plan]
"""From a setting and the plan so far to a plan; a pure function. Strategies compose left to right."""


def first_plan(setting: Setting) -> Plan:
    """Where strategies start: everything on one rank, the whole batch at once, nothing recomputed."""
    task = setting.task
    program = task.program(task.num_rows)
    return Plan(
        task.model.name,
        program.fingerprint,
        setting.cluster.name,
        task.num_rows,
        1,
        1,
        make_schedule("one_f_one_b", 1, 1),
        dtype=task.dtype,
    )


def apply(strategies: tuple[tuple[str, Strategy], ...], setting: Setting) -> Plan:
    """Apply named strategies left to right to the first plan."""
    plan = first_plan(setting)
    for name, strategy in strategies:
        plan = strategy(setting, plan)
        plan = replace(plan, made_by=(*plan.made_by, name))
    return plan


def with_mesh(
    setting: Setting,
    plan: Plan,
    *,
    data: int,
    tensor: int,
    pipeline: int,
    num_microbatches: int,
    schedule: str,
    num_stages_per_rank: int = 1,
    stage_starts: tuple[str, ...] = (),
) -> Plan:
    """The plan on another mesh; batch rows lie along the data axis, and the fingerprint follows the microbatch.

    What strategies before have placed stays where it is; lowering refuses what does not divide over an axis.
    A pipeline of one stage runs its microbatches one after the other, whatever the schedule, so that it keeps the
    activations of one only.

    Raises
    ------
    PlanError
        If the batch does not divide.
    """
    task = setting.task
    share = num_microbatches * data
    if task.num_rows % share:
        raise PlanError(
            f"a batch of {task.num_rows} rows cannot be cut into {num_microbatches} microbatches on {data} "
            f"data-parallel ranks; rows must be a multiple of {share}"
        )
    program = task.program(task.num_rows // num_microbatches)
    schedule = schedule if pipeline * num_stages_per_rank > 1 else "one_f_one_b"
    batch = {i.path: Shard(0) for i in program.inputs if i.kind == "batch"}
    along_data = {**plan.placements.get(DATA, {}), **batch}
    return replace(
        plan,
        fingerprint=program.fingerprint,
        data=data,
        tensor=tensor,
        schedule=make_schedule(schedule, pipeline, num_microbatches, num_stages_per_rank),
        stage_starts=stage_starts,
        placements={**plan.placements, DATA: along_data} if data > 1 else plan.placements,
    )
