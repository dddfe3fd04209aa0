"""Refusals of models that cannot be trained while their stages are updated at different moments."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from trainyard.job.lower.buckets import Param
from trainyard.job.optimizer import OptimizerConfig
from trainyard.job.optimizer.config import name_of
from trainyard.job.plan import Plan, PlanError
from trainyard.program.program import Program
from trainyard.reading import listed


def check_asynchronous(
    plan: Plan,
    program: Program,
    params: Mapping[str, Param],
    results: Mapping[int, Sequence[str]],
    optimizer: OptimizerConfig,
) -> None:
    """Refuse what would need more than one stage's gradients, or other microbatches than an update has.

    Parameters
    ----------
    program : of a microbatch.
    results : losses, metrics and buffers that each stage makes, as in ``Lowered.results``.

    Raises
    ------
    PlanError
        Says what, and what to do.
    """
    reason = next(_reasons(plan, program, params, results, optimizer), None)
    if reason is not None:
        raise PlanError(
            f"schedule {plan.schedule.name} updates stages at different moments of a step, and {reason}; or take a "
            "schedule without updates, such as one_f_one_b"
        )


def _reasons(
    plan: Plan,
    program: Program,
    params: Mapping[str, Param],
    results: Mapping[int, Sequence[str]],
    optimizer: OptimizerConfig,
) -> Iterator[str]:
    if program.totals is not None:
        names = ", ".join(i.path for i in program.inputs if i.kind == "total")
        yield (
            f"the loss needs sums over the whole batch ({names}), also of rows that later updates see first. Take a loss "
            "that is a mean over rows"
        )
    if optimizer.clip_norm:
        yield (
            f"the gradient's norm is that of all stages, so it cannot be cut to {optimizer.clip_norm:g}. Train without "
            "clipping (--clip-norm 0)"
        )
    if optimizer.ema_decay:
        yield "an average of the parameters would mix stages of different moments. Train without (--ema-decay 0)"
    if optimizer.make is not None:
        yield (
            f"{name_of(optimizer.make)} would count the updates of each stage for itself. Take adamw or sgd"
        )
    summed = [axis for axis in plan.state.summed_over if any(m.size(axis) > 1 for m in plan.meshes)]
    if summed:
        yield (
            f"gradients are summed over the ranks along {listed(summed)}. Take one rank there, and let several ranks of "
            "the schedule have actions of one stage"
        )
    shared = [p for p in params.values() if p.trainable and len(p.stages) > 1]
    if shared:
        stages = " and ".join(map(str, shared[0].stages))
        yield f"{shared[0].path} is used in stages {stages}. Start stages so that one of them has all its uses"
    for stage, made in results.items():
        written = [name.removeprefix("buffer:") for name in made if name.startswith("buffer:")]
        ranks = plan.schedule.ranks_of(stage)
        if written and len(ranks) > 1:
            yield (
                f"stage {stage}, which writes the buffer {written[0]}, is on ranks {', '.join(map(str, ranks))}, which "
                "would write different values. Let one rank have that stage"
            )
