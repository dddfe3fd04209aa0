"""Refusals of plans that divide what an optimizer updates as a whole."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from trainyard.job.lower.buckets import Param
from trainyard.job.lower.stage_program import StageProgram
from trainyard.job.optimizer import OptimizerConfig
from trainyard.job.plan import Plan, PlanError
from trainyard.program.placement import Shard


def check_undivided(
    plan: Plan, stages: Sequence[StageProgram], params: Mapping[str, Param], optimizer: OptimizerConfig
) -> None:
    """Refuse a plan that divides a parameter whose update is not computed element by element.

    Raises
    ------
    PlanError
        Names the optimizer, what the plan divides, and what to do.
    """
    if optimizer.divides:
        return
    needs = "all of a parameter" if optimizer.updates_parameters_alone else "all parameters"
    reason = next(_reasons(plan, stages, params, optimizer), None)
    if reason is not None:
        raise PlanError(
            f"{optimizer.known_traits.name} needs {needs} for the update of an element, and {reason}; or take an "
            "optimizer that updates element by element, such as AdamW"
        )


def _reasons(
    plan: Plan, stages: Sequence[StageProgram], params: Mapping[str, Param], optimizer: OptimizerConfig
) -> Iterator[str]:
    if any(bucket.num_shards > 1 for stage in stages for bucket in stage.buckets):
        yield (
            "the plan divides the optimizer state over ranks (ZeRO). Take a plan that leaves it whole, such as "
            "data_parallel"
        )
    for param in (p for p in params.values() if p.trainable):
        cut = [a for a, p in param.placements.items() if isinstance(p, Shard)]
        if cut:
            yield (
                f"the plan cuts {param.path} along {cut[0]}. Take a plan that leaves parameters whole, such as "
                "data_parallel or gpipe"
            )
        if not optimizer.updates_parameters_alone and (plan.pipeline > 1 or len(param.stages) > 1):
            yield "the plan has them on several ranks of a pipeline. Take a plan of one stage, such as data_parallel"
