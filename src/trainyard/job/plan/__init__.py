"""The plan of a training step, and its text form."""

from trainyard.job.plan.errors import DoesNotFitError, PlanError
from trainyard.job.plan.mesh import MICROBATCH, PIPELINE, Mesh
from trainyard.job.plan.parts import Axes, Stage, State, Traffic
from trainyard.job.plan.plan import FATES, Plan, Statistics, microbatches_text
from trainyard.job.plan.read import load_plan, model_for, parse_plan

__all__ = [
    "FATES",
    "MICROBATCH",
    "PIPELINE",
    "Axes",
    "DoesNotFitError",
    "Mesh",
    "Plan",
    "PlanError",
    "Stage",
    "State",
    "Statistics",
    "Traffic",
    "load_plan",
    "microbatches_text",
    "model_for",
    "parse_plan",
]
