"""Building the plan of a point from published parts: tensor, sequence and expert parallelism, ZeRO, recomputation."""

from __future__ import annotations

from dataclasses import replace

from torch import fx

from trainyard.job.auto.estimate import Estimate
from trainyard.job.auto.space import Recompute, Sharding
from trainyard.job.balance import repeated_blocks
from trainyard.job.plan import Plan
from trainyard.job.remesh import DATA, TENSOR, with_mesh
from trainyard.job.schedules import make_schedule
from trainyard.job.setting import Setting
from trainyard.job.strategies.parallel.megatron import tensor_placements
from trainyard.job.strategies.parallel.sequence_parallel import sequence_parallel
from trainyard.job.transformer import attention_core, expert_weights, tensor_parallel_regions
from trainyard.program.blocks import blocks
from trainyard.program.patterns import shortened
from trainyard.program.program import Program


def build_sharding(setting: Setting, sharding: Sharding) -> Plan:
    """The plan of a sharding alone, on one pipeline stage: what a probe lowers.

    Raises
    ------
    PlanError
        If the model cannot be sharded so.
    """
    count = setting.task.num_rows // (sharding.rows * sharding.data)
    plan = _on_mesh(setting, sharding, sharding.data, 1, count, "one_f_one_b", 1, ())
    return _placed(setting, plan, sharding)


def build(setting: Setting, estimate: Estimate) -> Plan:
    """The plan of a point on the whole model."""
    point = estimate.point
    program = setting.task.program(point.sharding.rows * point.data)
    first_of: dict[str, str] = {}
    for block in blocks(program):
        first_of.setdefault(block.path, block.first)
    starts = tuple(first_of[path] for path in estimate.stage_paths[1:])
    plan = _on_mesh(
        setting,
        point.sharding,
        point.data,
        point.pipeline,
        point.num_microbatches,
        point.schedule,
        point.stages_per_rank,
        starts,
    )
    plan = _placed(setting, plan, point.sharding)
    plan = plan.with_recomputed(recomputed(program, point.recompute) | program.recompute)
    return replace(plan, state=plan.state.dividing(point.divided))


def _on_mesh(
    setting: Setting,
    sharding: Sharding,
    data: int,
    pipeline: int,
    num_microbatches: int,
    schedule: str,
    stages_per_rank: int,
    stage_starts: tuple[str, ...],
) -> Plan:
    task = setting.task
    program = task.program(task.num_rows // num_microbatches)
    alone = Plan(
        task.model.name,
        program.fingerprint,
        setting.cluster.name,
        task.num_rows,
        make_schedule("one_f_one_b", 1, num_microbatches),
        dtype=task.dtype,
        place=setting.place,
    )
    return with_mesh(
        setting,
        alone,
        data=data,
        tensor=sharding.tensor,
        pipeline=pipeline,
        num_microbatches=num_microbatches,
        schedule=schedule,
        num_stages_per_rank=stages_per_rank,
        stage_starts=stage_starts,
    )


def _placed(setting: Setting, plan: Plan, sharding: Sharding) -> Plan:
    program = setting.task.program(plan.rows_per_microbatch)
    paths = [i.path for i in program.inputs]
    if sharding.tensor > 1:
        cut = tensor_placements(program, sharding.tensor)[0]
        plan = plan.with_placements(TENSOR, shortened(cut, paths))
    if sharding.expert:
        plan = plan.with_placements(DATA, shortened(expert_weights(program, sharding.data), paths))
    return sequence_parallel()(setting, plan) if sharding.sequence else plan


def recomputed(program: Program, kind: Recompute) -> frozenset[str]:
    """Forward ops that are computed again, by address and pattern.

    ``selective`` is the core of attention (arXiv 2205.05198, section 5); ``full`` is all of the repeated blocks but
    what they hand on (arXiv 1604.06174 with a segment per block).
    """
    if kind == "none":
        return frozenset()
    if kind == "selective":
        attention = [region for region in tensor_parallel_regions(program, 1) if region.is_attention]
        core = [n for region in attention for n in attention_core(region)]
        return frozenset(program.addresses.shortened(core))
    again: list[fx.Node] = []
    for block in repeated_blocks(program):
        inside = set(block.ops)
        for node in block.ops:
            if all(u in inside or u.meta.get("phase") == "backward" for u in node.users):
                again.append(node)
    return frozenset(program.addresses.shortened(again))


def has_experts(program: Program) -> bool:
    """Return whether the model has experts that two ranks can divide."""
    return bool(expert_weights(program, 2))
