"""Putting a plan on another mesh: with given sizes of all axes, or of one that leaves the others as they are.

The strategies call two axes by name: rows are divided over ``data``, and ops within a layer over ``tensor``.
"""

from __future__ import annotations

from dataclasses import replace

from trainyard.job.plan import PIPELINE, Mesh, Plan, PlanError, Stage, microbatches_text
from trainyard.job.schedules import make_schedule
from trainyard.job.setting import Setting
from trainyard.program.program import Program
from trainyard.reading import count_text

DATA, TENSOR = "data", "tensor"


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
    """The plan on another mesh; rows are divided over the data axis, and the fingerprint follows the microbatch.

    What strategies before have placed stays where it is, as long as there is the axis; lowering refuses what does not
    divide over it.
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
            f"a batch of {count_text(task.num_rows, 'row')} cannot be cut into {microbatches_text(num_microbatches)} on "
            f"{count_text(data, 'data-parallel rank')}; rows must be a multiple of {share}"
        )
    program = task.program(task.num_rows // num_microbatches)
    schedule = schedule if pipeline * num_stages_per_rank > 1 else "one_f_one_b"
    mesh = Mesh(tuple((name, size) for name, size in ((DATA, data), (TENSOR, tensor)) if size > 1))
    rows = (DATA,) if data > 1 else ()
    starts = ("", *stage_starts)
    return replace(
        plan,
        fingerprint=program.fingerprint,
        statistics=task.statistics_in(num_microbatches),
        schedule=make_schedule(schedule, pipeline, num_microbatches, num_stages_per_rank),
        stages=tuple(Stage(start, mesh, rows) for start in starts),
        placements={
            name: kept
            for name, wanted in plan.placements.items()
            if (kept := {axis: p for axis, p in wanted.items() if axis in mesh.axes})
        },
        state=plan.state.over(rows),
    )


def axis_sizes(plan: Plan) -> dict[str, int]:
    """Ranks along the pipeline and the axes by name."""
    return {PIPELINE: plan.pipeline, **{axis: plan.mesh.size(axis) for axis in (DATA, TENSOR)}}


def degree_left(setting: Setting, plan: Plan, axis: str, asked: int | None) -> int:
    """The size an axis gets: what was asked for, or all devices that the other axes leave.

    Raises
    ------
    PlanError
        If the cluster has too few devices, or nothing was asked for and the other axes take all of them.
    """
    others = 1
    for name, size in axis_sizes(plan).items():
        others *= size if name != axis else 1
    num_devices = setting.cluster.num_devices
    degree = max(1, num_devices // others) if asked is None else asked
    if degree < 1 or degree * others > num_devices:
        raise PlanError(
            f"{degree} {axis} ranks times {others} ranks on the other axes do not fit on the {num_devices} "
            f"devices of {setting.cluster.name}; use 1 to {max(1, num_devices // others)}"
        )
    if asked is None and degree == 1 and num_devices > 1 and others > 1:
        taken = ", ".join(f"{size} {name}" for name, size in axis_sizes(plan).items() if name != axis)
        raise PlanError(
            f"no devices of {setting.cluster.name} are left for the {axis} axis: the strategies before took "
            f"{taken}; give one of them a smaller degree, such as "
            f"data_parallel(degree={max(1, num_devices // 2)})"
        )
    return degree


def microbatches_at_most(setting: Setting, plan: Plan, limit: int) -> int:
    """The largest number of microbatches up to a limit into which each data-parallel rank's rows divide.

    One where the batch cannot be split.

    Raises
    ------
    PlanError
        If the rows do not divide over the data-parallel ranks.
    """
    rows = setting.task.num_rows
    data = plan.mesh.size(DATA)
    if rows % data:
        raise PlanError(
            f"a batch of {count_text(rows, 'row')} does not divide over {data} data-parallel ranks; use a multiple of "
            f"{data} rows"
        )
    own = rows // data
    if not setting.task.splits:
        return 1
    return max(n for n in range(1, min(limit, own) + 1) if own % n == 0)


def resized(setting: Setting, plan: Plan, *, data: int | None = None, tensor: int | None = None) -> Plan:
    """The plan with other sizes of its data or tensor axis; its pipeline stays.

    Raises
    ------
    PlanError
        If the batch does not divide.
    """
    return with_mesh(
        setting,
        plan,
        data=plan.mesh.size(DATA) if data is None else data,
        tensor=plan.mesh.size(TENSOR) if tensor is None else tensor,
        pipeline=plan.pipeline,
        num_microbatches=plan.num_microbatches,
        schedule=plan.schedule.name,
        num_stages_per_rank=plan.schedule.num_stages // plan.schedule.num_ranks,
        stage_starts=plan.stage_starts,
    )


def microbatch_program(setting: Setting, num_microbatches: int, data: int) -> Program:
    """The program that one microbatch of so many runs.

    Raises
    ------
    PlanError
        If the batch does not divide into that many microbatches on ``data`` data-parallel ranks.
    """
    rows = setting.task.num_rows
    if num_microbatches < 1 or rows % (num_microbatches * data):
        raise PlanError(
            f"a batch of {count_text(rows, 'row')} cannot be cut into {microbatches_text(num_microbatches)} on "
            f"{count_text(data, 'data-parallel rank')}; use a number that divides "
            f"{rows // data if rows % data == 0 else rows}"
        )
    return setting.task.program(rows // num_microbatches)
