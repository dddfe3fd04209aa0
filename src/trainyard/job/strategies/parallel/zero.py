"""ZeRO: data-parallel ranks share optimizer state, gradients and parameters instead of each keeping all of them.

Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", SC 2020,
arXiv 1910.02054.

Fidelity: exact for ZeRO-DP (section 5): P_os, P_os+g and P_os+g+p, with their communication volumes (section 7).
ZeRO-R (section 6: partitioned activation checkpoints, constant-size buffers, defragmentation) is left out.
"""

from __future__ import annotations

from dataclasses import replace

from trainyard.job.model_state import ADAM_MIXED, model_state_bytes, num_trained
from trainyard.job.plan import Plan, PlanError
from trainyard.job.remesh import DATA, degree_left, resized
from trainyard.job.setting import Setting, Strategy

DIVIDED: dict[int, tuple[str, ...]] = {
    1: ("optimizer",),
    2: ("optimizer", "gradients"),
    3: ("optimizer", "gradients", "parameters"),
}
"""What the stages of ZeRO divide."""


def zero(*, stage: int = 2, degree: int | None = None) -> Strategy:
    """Share the model state over the data axis.

    With Psi parameters, N ranks and Adam in mixed precision, a rank keeps (section 3.1 and figure 1)::

        stage 0   16 Psi
        stage 1   4 Psi + 12 Psi / N      P_os
        stage 2   2 Psi + 14 Psi / N      P_os+g
        stage 3   16 Psi / N              P_os+g+p

    Parameters
    ----------
    stage : 1, 2 or 3; the paper's ZeRO-100B is stage 2.
    degree : data-parallel ranks; by default those of the plan so far, or all devices that are left.

    Returns
    -------
    Strategy
        It raises `PlanError` if only one data-parallel rank is possible.

    Raises
    ------
    PlanError
        If there is no such stage.

    Examples
    --------
    >>> from trainyard import load_model, plan
    >>> plan = plan(load_model("gpt-tiny"), "1x4xA100-80G", "zero(stage=3)").plan
    >>> str(plan.mesh), plan.state.divided
    ('4 data', ('optimizer', 'gradients', 'parameters'))
    """
    if stage not in DIVIDED:
        raise PlanError(f"ZeRO has stages 1, 2 and 3, got {stage}; without sharing use data_parallel")

    def strategy(setting: Setting, plan: Plan) -> Plan:
        known = plan.mesh.size(DATA)
        size = degree_left(setting, plan, DATA, degree if degree is not None or known == 1 else known)
        if size == 1:
            raise PlanError(
                f"ZeRO shares model state over data-parallel ranks and there is only one on {setting.cluster.name}; "
                "use a cluster with more devices, or another strategy's smaller degree"
            )
        plan = resized(setting, plan, data=size)
        whole, shared = (
            model_state_bytes(1, ADAM_MIXED, divided=parts, num_ranks=size) for parts in ((), DIVIDED[stage])
        )
        state = plan.state.dividing(DIVIDED[stage])
        why = (
            f"{size} ranks divide {state.divided_text} between them: in mixed precision with Adam {shared:.3g} bytes "
            f"per parameter instead of {whole:.3g}."
        )
        program = setting.task.program(plan.rows_per_microbatch)
        if num_frozen := program.num_params - num_trained(program):
            kept = "their weights are shared, too" if stage == 3 else "every rank keeps all of their weights"
            why += f" {num_frozen:,} parameters are not trained and have neither gradients nor state; {kept}."
        return replace(plan, state=state, reasons=(*plan.reasons, why))

    return strategy
