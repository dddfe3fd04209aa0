"""GPipe: a sequence of layers in balanced partitions, microbatches in a pipeline with a flush, recomputation.

Huang et al., "GPipe: Efficient Training of Giant Neural Networks using Pipeline Parallelism", NeurIPS 2019,
arXiv 1811.06965.

Fidelity: exact for the algorithm of section 2. The cost of a layer, which the paper leaves to an optional
function of the user, is the time of its forward and backward pass by the roofline; where the paper evens out the
estimated costs of the partitions, a bisection makes the largest as small as possible. Layers are the model's
blocks. Batch normalisation uses the statistics of the microbatch, as in section 2.2; moving averages follow the
microbatches, too.
"""

from __future__ import annotations

from dataclasses import replace

from trainyard.job.balance import balanced_starts
from trainyard.job.plan import PIPELINE, Plan, microbatches_text
from trainyard.job.remesh import (
    DATA,
    TENSOR,
    degree_left,
    microbatch_program,
    microbatches_at_most,
    with_mesh,
)
from trainyard.job.setting import Setting, Strategy
from trainyard.job.transformer import forward_ops


def bubble_fraction(num_stages: int, num_microbatches: int) -> float:
    """Idle share of a step, (K - 1) / (M + K - 1) (section 2.3).

    Examples
    --------
    >>> bubble_fraction(num_stages=4, num_microbatches=16)
    0.15789473684210525
    """
    return (num_stages - 1) / (num_microbatches + num_stages - 1)


def gpipe(*, stages: int | None = None, microbatches: int | None = None, recompute: bool = True) -> Strategy:
    """K balanced partitions, M microbatches, only partition inputs kept for the backward pass.

    Peak activation memory falls from O(N L) to O(N + L / K * N / M) for a batch of N rows and L layers, and the
    idle share of a step is ``bubble_fraction(K, M)``, negligible when M >= 4 K (section 2.3).

    Parameters
    ----------
    stages : partitions (the paper's K); by default all devices that the plan so far leaves.
    microbatches : microbatches of a step (M); by default the largest number up to 4 K that divides the rows.
    recompute : recompute each partition's forward pass in the backward pass, as the paper does.

    Returns
    -------
    Strategy
        It raises `PlanError` if the model has fewer blocks than stages or the batch does not divide.

    Examples
    --------
    >>> from trainyard.hardware.parse import parse_cluster
    >>> from trainyard.job.planning import make_setting
    >>> from trainyard.job.setting import apply
    >>> from trainyard.job.task import Task
    >>> from trainyard.zoo.registry import build
    >>> setting = make_setting(Task(build("gpt-tiny", 16)), parse_cluster("1x2xA100-80G"))
    >>> plan = apply((("gpipe", gpipe()),), setting)
    >>> plan.pipeline, plan.num_microbatches, plan.stage_starts
    (2, 8, ('blocks.1.norm_1:native_layer_norm',))
    """

    def strategy(setting: Setting, plan: Plan) -> Plan:
        num_stages = degree_left(setting, plan, PIPELINE, stages)
        count = microbatches_at_most(setting, plan, 4 * num_stages) if microbatches is None else microbatches
        program = microbatch_program(setting, count, plan.mesh.size(DATA))
        plan = with_mesh(
            setting,
            plan,
            data=plan.mesh.size(DATA),
            tensor=plan.mesh.size(TENSOR),
            pipeline=num_stages,
            num_microbatches=count,
            schedule="gpipe",
            stage_starts=balanced_starts(program, num_stages, setting.op_table(program.num_rows)),
        )
        again = program.addresses.shortened(forward_ops(program)) if recompute else ()
        why = (
            f"{num_stages} stages balanced by time and {microbatches_text(count)} leave "
            f"{100 * bubble_fraction(num_stages, count):.1f}% of a step idle."
        )
        return replace(plan.with_recomputed(again), reasons=(*plan.reasons, why))

    return strategy
