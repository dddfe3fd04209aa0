"""Answers of level 1 about trainings, for `trainyard.fleet.workload.level1`: they take PyTorch, and so seconds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from trainyard.fleet.workload.training import CAPTURING, Training, cluster_text, is_own_file

if TYPE_CHECKING:
    from torch import nn

    from trainyard.hardware.cluster import Cluster
    from trainyard.job.task import Task

__all__ = ["QUESTIONS", "predicted_steps_per_s"]


def _steps_per_s(
    training: Training, device_type: str, per_node: tuple[int, ...], own_cores: bool = False
) -> float:
    from trainyard.hardware import cluster_of_profile, local_profile, parse_cluster

    if own_cores:
        num_devices = sum(per_node)
        cluster = cluster_of_profile(replace(local_profile(), num_cores=num_devices), num_devices)
    else:
        cluster = parse_cluster(cluster_text([(device_type, count) for count in per_node]))
    return predicted_steps_per_s(_task(training), cluster, training.strategies)[0]


@lru_cache(maxsize=4)  # programs of large models are large
def _task(training: Training) -> Task:
    """Return the task of a training; all places share it, so that each program is captured once."""
    return training.task()


def predicted_steps_per_s(task: Task, cluster: Cluster, strategies: str) -> tuple[float, str]:
    """Predict the steps per second of a task on all devices of a cluster; 0 and the reason if it cannot run there."""
    from trainyard.job.plan import PlanError
    from trainyard.job.planning import plan_task
    from trainyard.job.schedule import ScheduleError

    try:
        with CAPTURING:
            found = plan_task(task, cluster, strategies).simulation
    except (PlanError, ScheduleError) as error:
        return 0.0, str(error)
    if not found.fits:
        return 0.0, f"a device is short of {max(found.shortage_bytes) / 2**30:.3g} GiB of memory"
    return 1.0 / found.step_s, ""


def _skew(model: str) -> float:
    with CAPTURING:
        sizes = [tensor.numel() * tensor.element_size() for tensor in _module(model).parameters()]
    return max(sizes) / sum(sizes)


def _module(model: str) -> nn.Module:
    """Return the module of a model of the zoo, or of a Python file."""
    import torch

    from trainyard.job.sources import file_model
    from trainyard.zoo import build

    own = file_model(model, 0) if is_own_file(model) else None
    if own is not None:
        return own.module
    with torch.device("meta"):
        return build(model).module


def _plan_problem(training: Training, cluster: str) -> str:
    """Say why a training cannot run on a cluster, given as text: no plan, or no memory; "" if it can."""
    from trainyard.hardware import parse_cluster
    from trainyard.job.lower.lower import lower
    from trainyard.job.plan import PlanError
    from trainyard.job.schedule import ScheduleError
    from trainyard.job.simulate import simulate_plan

    place, task = parse_cluster(cluster), _task(training)
    try:
        plan = training.plan(place, task)
        with CAPTURING:
            lowered = lower(task.program(plan.rows_per_microbatch), plan)
    except (PlanError, ScheduleError) as error:
        return f"no plan for {training.model} by {training.strategies}: {error}"
    found = simulate_plan(lowered, place)  # nothing is measured for the memory that it takes
    return "" if found.fits else f"{training.model} with {training.rows} rows does not fit: {found.shortage}"


def _name_problem(model: str, strategies: str) -> tuple[str, str] | None:
    """Return the name of the wrong field, ``model`` or ``strategies``, and the allowed values; None if both are right."""
    from trainyard.zoo import names

    if model not in names():
        return "model", f"a model of the zoo: {', '.join(names())}; or a Python file, FILE.py"
    return _strategies_problem(strategies)


def _strategies_problem(strategies: str) -> tuple[str, str] | None:
    from trainyard.job.catalog import parse_strategies
    from trainyard.job.plan import PlanError

    try:
        parse_strategies(strategies)
    except PlanError as error:
        return "strategies", str(error)
    return None


def _file_problem(
    path: str, rows: int, strategies: str, learning_rate: str, changed_ns: int
) -> tuple[str, str] | None:
    """Return the wrong field of a training of a Python file, and the allowed values; the file is run.

    Parameters
    ----------
    learning_rate : as it was given; "" if it was not.
    changed_ns : time when the file was changed; answers are kept, and this asks again after a change.
    """
    from trainyard.job.own_optimizer import options_of_file
    from trainyard.job.sources import data_function
    from trainyard.program.batch import batch_rows
    from trainyard.user_file import fault_in_user_file
    from trainyard.zoo import load_model_file

    try:
        model = load_model_file(path)
        data_function(path)
    except Exception as error:
        return "model", f"a Python file with model() and its data; {fault_in_user_file(error) or error}"
    if rows != (own := batch_rows(model.batch, model.whole)):
        return "batch_size", f"{own}, the rows of the batch of {path}"
    if learning_rate and "lr" in options_of_file(path):
        return "learning_rate", f"nothing: the optimizer of {path} decides about it"
    return _strategies_problem(strategies)


def _checkpoint_problem(model: str, most_bytes: float) -> str:
    """Say by how much the checkpoints of a model are too large; "" if they are not."""
    from trainyard.job.optimizer import OptimizerConfig
    from trainyard.job.run.checkpoint.quota import QuotaError, check_quota, checkpoint_bytes
    from trainyard.job.run.config import TrainConfig

    with CAPTURING:
        one_bytes = checkpoint_bytes(_module(model), OptimizerConfig())
    try:
        check_quota(one_bytes, TrainConfig.keep, most_bytes)
    except QuotaError as error:
        return str(error)
    return ""


QUESTIONS: Mapping[str, Callable[..., Any]] = {
    "steps_per_s": _steps_per_s,
    "skew": _skew,
    "plan_problem": _plan_problem,
    "name_problem": _name_problem,
    "file_problem": _file_problem,
    "checkpoint_problem": _checkpoint_problem,
}
"""Questions to level 1, by name."""
