"""Expert parallelism: the experts of a mixture are dealt out over the data-parallel ranks.

Lepikhin et al., "GShard: Scaling Giant Models with Conditional Computation and Automatic Sharding", ICLR 2021,
arXiv 2006.16668.

Fidelity: simplified. Where weights lie and the two all-to-alls around the experts are the paper's (section 3.2,
algorithm 2); gating is the model's own. Experts must be one batched product (every expert the same shape).
"""

from __future__ import annotations

from dataclasses import replace

from trainyard.job.plan import Plan, PlanError
from trainyard.job.remesh import DATA, degree_left, resized
from trainyard.job.setting import Setting, Strategy
from trainyard.job.transformer import expert_weights
from trainyard.program.patterns import shortened


def expert_parallel(*, degree: int | None = None) -> Strategy:
    """Every data-parallel rank holds 1/N of the experts and receives the tokens that are sent to them.

    Parameters
    ----------
    degree : data-parallel ranks N; by default those of the plan so far, or all devices that are left.

    Returns
    -------
    Strategy
        It raises `PlanError` if the model has no experts that divide by the number of ranks.

    Examples
    --------
    >>> from trainyard.hardware.parse import parse_cluster
    >>> from trainyard.job.planning import make_setting
    >>> from trainyard.job.setting import apply
    >>> from trainyard.job.task import Task
    >>> from trainyard.zoo.registry import build
    >>> setting = make_setting(Task(build("moe-tiny")), parse_cluster("1x2xA100-80G"))
    >>> plan = apply((("expert_parallel", expert_parallel()),), setting)
    >>> str(plan.placements["blocks.*.experts.up"]["data"])
    'S0'
    """

    def strategy(setting: Setting, plan: Plan) -> Plan:
        known = plan.mesh.size(DATA)
        size = degree_left(setting, plan, DATA, degree if degree is not None or known == 1 else known)
        if size == 1:
            raise PlanError(
                f"expert_parallel deals experts out over data-parallel ranks and there is only one on "
                f"{setting.cluster.name}; use a cluster with more devices, or another strategy's smaller degree"
            )
        plan = resized(setting, plan, data=size)
        program = setting.task.program(plan.rows_per_microbatch)
        experts = expert_weights(program, size)
        if not experts:
            raise PlanError(
                f"{program.name} has no experts that divide over {size} ranks; expert_parallel needs a mixture of "
                "experts whose number is a multiple of the data-parallel ranks, such as moe-tiny on 2 or 4"
            )
        why = f"The weights of {len(experts)} expert layers' products are dealt out over {size} ranks."
        return replace(
            plan.with_placements(DATA, shortened(experts, [i.path for i in program.inputs])),
            reasons=(*plan.reasons, why),
        )

    return strategy
