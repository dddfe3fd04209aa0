"""A step of a published configuration, simulated."""

from __future__ import annotations

from collections.abc import Callable

import torch

from trainyard.cost.ops import OpSeconds
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


def simulated(
    setting: Setting,
    strategies: str,
    optimizer: OptimizerConfig | None = None,
    op_seconds: OpSeconds | None = None,
) -> Simulation:
    """The step that strategies, as ``trainyard plan --strategies`` reads them, plan for a setting.

    Parameters
    ----------
    op_seconds : of ops; by default the roofline.
    """
    plan = apply(parse_strategies(strategies), setting)
    program = setting.task.program(plan.rows_per_microbatch)
    return simulate_plan(lower(program, plan, optimizer), setting.cluster, op_seconds)


def megatron_text(
    tensor: int, pipeline: int, data: int, microbatch_rows: int, *others: str, stages_per_rank: int = 1
) -> str:
    """Strategies as text: degrees of a program that hides no sum of gradients of inputs, and others after them."""
    degrees = (
        f"megatron(tensor={tensor}, pipeline={pipeline}, data={data}, microbatch_rows={microbatch_rows}, "
        f"stages_per_rank={stages_per_rank}, overlap=False)"
    )
    return " + ".join((degrees, *others))


def gradients_at_the_end(data: int) -> str:
    """A strategy that sums all gradients over so many replicas at once, after the last backward pass.

    So do programs that sum gradients without buckets, such as Megatron-LM with its ``DDP_impl local``.
    """
    return f"data_parallel(degree={data}, bucket_bytes={2**40})"
