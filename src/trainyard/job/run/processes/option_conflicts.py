"""Option conflicts: options of a run that its plan or its model rules out."""

from __future__ import annotations

from trainyard.job.plan import PlanError
from trainyard.job.run.config import WorkerInput
from trainyard.program.model import Model

__all__ = ["check_options"]


def check_options(work: WorkerInput, model: Model) -> None:
    """Refuse options that the plan or the model rules out.

    Raises
    ------
    PlanError
        If there is such an option; the message names both, and what to leave out.
    """
    plan = work.plan
    if plan.dtype == "float16" and plan.schedule.has_updates:
        raise PlanError(
            f"schedule {plan.schedule.name} updates stages before it is known whether all gradients of a step are "
            "finite, as the scale of a loss in float16 needs; take dtype bfloat16, or a schedule without updates"
        )
    if plan.schedule.has_updates and work.config.on_nonfinite == "skip":
        raise PlanError(
            f"schedule {plan.schedule.name} updates stages before the loss of a step is known, so the updates of one "
            "that is not finite cannot be left out; train with --on-nonfinite stop, or take a schedule without updates"
        )
    if work.config.profile and model.lengths is not None:
        raise PlanError(
            f"profile compares steps with the predicted one, and batches of {model.name} are padded to several lengths; "
            "leave profile out, or profile the model with a single one of its lengths"
        )
