"""Task: the work to be planned, and the setting in which a strategy plans it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch

from trainyard.divisors import divisors
from trainyard.hardware.cluster import Cluster
from trainyard.hardware.parse import is_described_by_name
from trainyard.job.lower.split import CoupledRowsError, split
from trainyard.job.plan import DATA, Plan, PlanError, Statistics
from trainyard.job.schedules import make_schedule
from trainyard.program.batch import batch_rows
from trainyard.program.capture import capture
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
    statistics : of what rows that depend on each other are computed where the batch is split into microbatches: of the
        ``batch``, which refuses to split it, or of each ``microbatch``, which trains something else. See ``Plan``.
    rows : of one step; by default those of the model's example batch.
    """

    model: Model
    dtype: str = "float32"
    statistics: Statistics = "batch"
    rows: int | None = None
    _programs: dict[int, Program] = field(default_factory=dict, repr=False)

    @cached_property
    def num_rows(self) -> int:
        """Rows of one step."""
        return batch_rows(self.model.batch, self.model.whole) if self.rows is None else self.rows

    def program(self, num_rows: int) -> Program:
        """The program of a microbatch of this many rows (on all data-parallel ranks together); made once.

        Raises
        ------
        PlanError
            If that is not the whole batch, and its rows depend on each other.
        """
        if num_rows not in self._programs:
            self._programs[num_rows] = self._program(num_rows)
        return self._programs[num_rows]

    def _program(self, num_rows: int) -> Program:
        dtype = getattr(torch, self.dtype)
        count = self.num_rows // num_rows
        if count == 1:
            return capture(self.model, num_rows, dtype)
        try:
            return split(self.program(self.num_rows), count)
        except CoupledRowsError as error:
            if self.statistics == "microbatch":
                return replace(capture(self.model, num_rows, dtype, share=1 / count), is_separate=True)
            raise PlanError(
                f"{self.model.name} cannot be trained in {count} microbatches of {num_rows} rows: {error}. Microbatches "
                "could train something else than the whole batch. Use one microbatch, which data- and tensor-parallel "
                "ranks may share, or accept that each microbatch is computed by itself (--statistics microbatch)"
            ) from error

    @cached_property
    def coupling(self) -> str | None:
        """Why the batch cannot be split into microbatches exactly; None where it can."""
        rows = self.num_rows
        count = next(iter(divisors(rows)[1:]), 1)
        try:
            self._programs.setdefault(rows // count, split(self.program(rows), count))
        except CoupledRowsError as error:
            return str(error)
        return None

    @property
    def splits(self) -> bool:
        """Whether the batch may be split into microbatches."""
        return self.statistics == "microbatch" or self.coupling is None

    def statistics_in(self, num_microbatches: int) -> Statistics:
        """What a plan of so many microbatches has to say of rows that depend on each other."""
        return "microbatch" if self.program(self.num_rows // num_microbatches).is_separate else "batch"


@dataclass(frozen=True, eq=False)
class Setting:
    """What a strategy decides on: the work and the place."""

    task: Task
    cluster: Cluster

    @cached_property
    def place(self) -> Cluster | None:
        """The cluster as plans carry it: None where its name says what it is."""
        return None if is_described_by_name(self.cluster) else self.cluster


Strategy = Callable[[Setting, Plan], Plan]
"""From a setting and the plan so far to a plan; a pure function. Strategies compose left to right."""


def first_plan(setting: Setting) -> Plan:
    """Where strategies start: everything on one rank, the whole batch at once, recomputed what the model checkpoints."""
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
        recompute=program.recompute,
        dtype=task.dtype,
        place=setting.place,
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
    batch = {i.path: Shard(0) for i in program.inputs if i.kind == "batch" and not i.whole}
    along_data = {**plan.placements.get(DATA, {}), **batch}
    return replace(
        plan,
        fingerprint=program.fingerprint,
        statistics=task.statistics_in(num_microbatches),
        data=data,
        tensor=tensor,
        schedule=make_schedule(schedule, pipeline, num_microbatches, num_stages_per_rank),
        stage_starts=stage_starts,
        placements={**plan.placements, DATA: along_data} if data > 1 else plan.placements,
    )
