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

from types import MappingProxyType
from typing import TYPE_CHECKING

from trainyard.lazy_names import lazy_names

if TYPE_CHECKING:
    from trainyard import fleet as fleet
    from trainyard import serve as serve
    from trainyard.errors import TrainyardError as TrainyardError
    from trainyard.hardware.cluster import Cluster as Cluster
    from trainyard.hardware.errors import HardwareError as HardwareError
    from trainyard.hardware.parse import parse_cluster as parse_cluster
    from trainyard.job.lower.lower import lower as lower
    from trainyard.job.optimizer import OptimizerConfig as OptimizerConfig
    from trainyard.job.plan import DoesNotFitError as DoesNotFitError
    from trainyard.job.plan import Plan as Plan
    from trainyard.job.plan import PlanError as PlanError
    from trainyard.job.plan import load_plan as load_plan
    from trainyard.job.planning import Infeasible as Infeasible
    from trainyard.job.planning import PlanComparison as PlanComparison
    from trainyard.job.planning import Planned as Planned
    from trainyard.job.planning import compare as compare
    from trainyard.job.planning import load_model as load_model
    from trainyard.job.planning import plan as plan
    from trainyard.job.planning import simulate as simulate
    from trainyard.job.run.best import EarlyStop as EarlyStop
    from trainyard.job.run.best import KeepBest as KeepBest
    from trainyard.job.run.checkpoint.weights import load_weights as load_weights
    from trainyard.job.run.checkpoint.weights import read_weights as read_weights
    from trainyard.job.run.config import InitFrom as InitFrom
    from trainyard.job.run.config import StepMetrics as StepMetrics
    from trainyard.job.run.config import TrainConfig as TrainConfig
    from trainyard.job.run.config import TrainResult as TrainResult
    from trainyard.job.run.errors import CheckpointError as CheckpointError
    from trainyard.job.run.errors import NonFiniteError as NonFiniteError
    from trainyard.job.run.processes.fork_server import WorkerError as WorkerError
    from trainyard.job.run.step.data import DataError as DataError
    from trainyard.job.run.step.data import FixedData as FixedData
    from trainyard.job.run.step.data import FunctionData as FunctionData
    from trainyard.job.run.step.evaluation import Evaluation as Evaluation
    from trainyard.job.run.train import train as train
    from trainyard.job.simulate import Simulation as Simulation
    from trainyard.job.trainer import StopTraining as StopTraining
    from trainyard.job.trainer import Trainer as Trainer
    from trainyard.program.capture import capture as capture
    from trainyard.program.capture_error import CaptureError as CaptureError
    from trainyard.program.lengths import LengthError as LengthError
    from trainyard.program.lengths import Lengths as Lengths
    from trainyard.program.model import Model as Model
    from trainyard.program.own_ops import rows as rows
    from trainyard.program.program import Program as Program
    from trainyard.reading.arguments import WrongTypeError as WrongTypeError
    from trainyard.reading.arguments import WrongValueError as WrongValueError

_HOME = MappingProxyType(
    {
        "CaptureError": "trainyard.program.capture_error",
        "CheckpointError": "trainyard.job.run.errors",
        "Cluster": "trainyard.hardware.cluster",
        "DataError": "trainyard.job.run.step.data",
        "DoesNotFitError": "trainyard.job.plan",
        "EarlyStop": "trainyard.job.run.best",
        "Evaluation": "trainyard.job.run.step.evaluation",
        "FixedData": "trainyard.job.run.step.data",
        "FunctionData": "trainyard.job.run.step.data",
        "HardwareError": "trainyard.hardware.errors",
        "Infeasible": "trainyard.job.planning",
        "InitFrom": "trainyard.job.run.config",
        "KeepBest": "trainyard.job.run.best",
        "LengthError": "trainyard.program.lengths",
        "Lengths": "trainyard.program.lengths",
        "Model": "trainyard.program.model",
        "NonFiniteError": "trainyard.job.run.errors",
        "OptimizerConfig": "trainyard.job.optimizer",
        "Plan": "trainyard.job.plan",
        "PlanComparison": "trainyard.job.planning",
        "PlanError": "trainyard.job.plan",
        "Planned": "trainyard.job.planning",
        "Program": "trainyard.program.program",
        "Simulation": "trainyard.job.simulate",
        "StepMetrics": "trainyard.job.run.config",
        "StopTraining": "trainyard.job.trainer",
        "TrainConfig": "trainyard.job.run.config",
        "TrainResult": "trainyard.job.run.config",
        "Trainer": "trainyard.job.trainer",
        "TrainyardError": "trainyard.errors",
        "WorkerError": "trainyard.job.run.processes.fork_server",
        "WrongTypeError": "trainyard.reading.arguments",
        "WrongValueError": "trainyard.reading.arguments",
        "capture": "trainyard.program.capture",
        "compare": "trainyard.job.planning",
        "fleet": "trainyard.fleet",
        "load_model": "trainyard.job.planning",
        "load_plan": "trainyard.job.plan",
        "load_weights": "trainyard.job.run.checkpoint.weights",
        "lower": "trainyard.job.lower.lower",
        "parse_cluster": "trainyard.hardware.parse",
        "plan": "trainyard.job.planning",
        "read_weights": "trainyard.job.run.checkpoint.weights",
        "rows": "trainyard.program.own_ops",
        "serve": "trainyard.serve",
        "simulate": "trainyard.job.planning",
        "train": "trainyard.job.run.train",
    }
)

__all__ = [
    "CaptureError",
    "CheckpointError",
    "Cluster",
    "DataError",
    "DoesNotFitError",
    "EarlyStop",
    "Evaluation",
    "FixedData",
    "FunctionData",
    "HardwareError",
    "Infeasible",
    "InitFrom",
    "KeepBest",
    "LengthError",
    "Lengths",
    "Model",
    "NonFiniteError",
    "OptimizerConfig",
    "Plan",
    "PlanComparison",
    "PlanError",
    "Planned",
    "Program",
    "Simulation",
    "StepMetrics",
    "StopTraining",
    "TrainConfig",
    "TrainResult",
    "Trainer",
    "TrainyardError",
    "WorkerError",
    "WrongTypeError",
    "WrongValueError",
    "capture",
    "compare",
    "fleet",
    "load_model",
    "load_plan",
    "load_weights",
    "lower",
    "parse_cluster",
    "plan",
    "read_weights",
    "rows",
    "serve",
    "simulate",
    "train",
]

__getattr__, __dir__ = lazy_names(__name__, _HOME, globals())
