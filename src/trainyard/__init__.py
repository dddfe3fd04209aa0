"""Plan, simulate and run deep-learning work.

The public API, imported when it is first used, so that ``import trainyard`` is instant.

Examples
--------
>>> import trainyard as ty
>>> cluster = ty.parse_cluster("4x8xA100-80G")
>>> cluster.num_devices
32
"""

from __future__ import annotations

import importlib
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trainyard.hardware.cluster import Cluster as Cluster
    from trainyard.hardware.parse import parse_cluster as parse_cluster
    from trainyard.job.lower.lower import lower as lower
    from trainyard.job.plan import Plan as Plan
    from trainyard.job.plan import PlanError as PlanError
    from trainyard.job.plan import load_plan as load_plan
    from trainyard.job.planning import Infeasible as Infeasible
    from trainyard.job.planning import Planned as Planned
    from trainyard.job.planning import compare as compare
    from trainyard.job.planning import load_model as load_model
    from trainyard.job.planning import plan as plan
    from trainyard.job.planning import simulate as simulate
    from trainyard.job.run.best import EarlyStop as EarlyStop
    from trainyard.job.run.best import KeepBest as KeepBest
    from trainyard.job.run.config import InitFrom as InitFrom
    from trainyard.job.run.step.evaluation import Evaluation as Evaluation
    from trainyard.job.run.train import train as train
    from trainyard.job.simulate import Simulation as Simulation
    from trainyard.job.trainer import StopTraining as StopTraining
    from trainyard.job.trainer import Trainer as Trainer
    from trainyard.program.capture import capture as capture
    from trainyard.program.model import Model as Model
    from trainyard.program.own_ops import rows as rows
    from trainyard.program.program import Program as Program

_HOME = MappingProxyType(
    {
        "Cluster": "trainyard.hardware.cluster",
        "EarlyStop": "trainyard.job.run.best",
        "Evaluation": "trainyard.job.run.step.evaluation",
        "Infeasible": "trainyard.job.planning",
        "InitFrom": "trainyard.job.run.config",
        "KeepBest": "trainyard.job.run.best",
        "Model": "trainyard.program.model",
        "Plan": "trainyard.job.plan",
        "PlanError": "trainyard.job.plan",
        "Planned": "trainyard.job.planning",
        "Program": "trainyard.program.program",
        "Simulation": "trainyard.job.simulate",
        "StopTraining": "trainyard.job.trainer",
        "Trainer": "trainyard.job.trainer",
        "capture": "trainyard.program.capture",
        "compare": "trainyard.job.planning",
        "load_model": "trainyard.job.planning",
        "load_plan": "trainyard.job.plan",
        "lower": "trainyard.job.lower.lower",
        "parse_cluster": "trainyard.hardware.parse",
        "plan": "trainyard.job.planning",
        "rows": "trainyard.program.own_ops",
        "simulate": "trainyard.job.planning",
        "train": "trainyard.job.run.train",
    }
)

__all__ = [
    "Cluster",
    "EarlyStop",
    "Evaluation",
    "Infeasible",
    "InitFrom",
    "KeepBest",
    "Model",
    "Plan",
    "PlanError",
    "Planned",
    "Program",
    "Simulation",
    "StopTraining",
    "Trainer",
    "capture",
    "compare",
    "load_model",
    "load_plan",
    "lower",
    "parse_cluster",
    "plan",
    "rows",
    "simulate",
    "train",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"trainyard has no {name!r}; it has {', '.join(__all__)}, and its subpackages")
    found = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
