"""Data parallelism: every rank holds the whole model and its share of the batch's rows; gradients are summed.

Li et al., "PyTorch Distributed: Experiences on Accelerating Data Parallel Training", VLDB 2020, arXiv 2006.15704.

Fidelity: exact. Gradients travel in buckets, in the order in which the backward pass completes them, while it
goes on; batch statistics are those of the whole microbatch, as on one device.
"""

from __future__ import annotations

from dataclasses import replace

from trainyard.job.plan import Plan
from trainyard.job.remesh import DATA, degree_left, resized
from trainyard.job.setting import Setting, Strategy


def data_parallel(*, degree: int | None = None, bucket_bytes: int = 25 * 2**20) -> Strategy:
    """Replicas on the data axis, joined by an all-reduce of gradients.

    Parameters
    ----------
    degree : replicas; by default as many as the devices that the plan so far leaves.
    bucket_bytes : gradients of about this size are reduced together; the paper's default is 25 MB.

    Returns
    -------
    Strategy
        It raises `PlanError` if the devices or the rows of the batch do not suffice.

    Examples
    --------
    >>> from trainyard.hardware.parse import parse_cluster
    >>> from trainyard.job.planning import make_setting
    >>> from trainyard.job.setting import apply
    >>> from trainyard.job.task import Task
    >>> from trainyard.zoo.registry import build
    >>> setting = make_setting(Task(build("gpt-tiny")), parse_cluster("1x4xA100-80G"))
    >>> print(apply((("data_parallel", data_parallel()),), setting).mesh)
    4 data
    """

    def strategy(setting: Setting, plan: Plan) -> Plan:
        size = degree_left(setting, plan, DATA, degree)
        plan = resized(setting, plan, data=size)
        why = f"Each of {size} replicas takes {plan.rows_per_microbatch // size} rows of every microbatch."
        return replace(
            plan, traffic=replace(plan.traffic, bucket_bytes=bucket_bytes), reasons=(*plan.reasons, why)
        )

    return strategy
