"""A step of a published configuration, simulated."""

from __future__ import annotations

from collections.abc import Callable

import torch

from trainyard.hardware.parse import parse_cluster
from trainyard.job.catalog import parse_strategies
from trainyard.job.lower.lower import lower
from trainyard.job.optimizer import OptimizerConfig
from trainyard.job.planning import make_setting
from trainyard.job.setting import Setting, apply
from trainyard.job.simulate import simulate_plan
from trainyard.job.simulation.result import Simulation
from trainyard.job.task import Task
from trainyard.program.model import Model


def setting_of(
    build: Callable[..., Model], *arguments: object, cluster: str, dtype: str = "bfloat16"
) -> Setting:
    """A model on a cluster given as text; it is built in no memory, and captured once for all strategies."""
    with torch.device("meta"):
        return make_setting(Task(build(*arguments), dtype), parse_cluster(cluster))


def simulated(setting: Setting, strategies: str, optimizer: OptimizerConfig | None = None) -> Simulation:
    """The step that strategies, as ``trainyard plan --strategies`` reads them, plan for a setting."""
    plan = apply(parse_strategies(strategies), setting)
    program = setting.task.program(plan.rows_per_microbatch)
    return simulate_plan(lower(program, plan, optimizer), setting.cluster)


def gradients_at_the_end(data: int) -> str:
    """A strategy that sums all gradients over so many replicas at once, after the last backward pass.

    So do programs that sum gradients without buckets, such as Megatron-LM with its ``DDP_impl local``.
    """
    return f"data_parallel(degree={data}, bucket_bytes={2**40})"
