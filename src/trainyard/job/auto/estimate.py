"""Estimating a point from the costs of its stages."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np

from trainyard.cost.collectives import collective_cost
from trainyard.cost.ops import BUFFER_OPS
from trainyard.hardware.cluster import Cluster
from trainyard.job.auto.overhead import overhead_bytes
from trainyard.job.auto.space import Point
from trainyard.job.balance import balanced_cuts
from trainyard.job.model_state import StateBytes, model_state_bytes, state_of
from trainyard.job.schedule import Kind
from trainyard.job.schedules import dry_run, make_schedule, peak_awaiting_backward
from trainyard.job.setting import TaskLike
from trainyard.job.tables import Floats, LayerTable

_GRADIENT_BYTES = 4

Balance = Literal["time", "memory"]
"""What stages are to have the same of."""


@dataclass(frozen=True, eq=False)
class Stages:
    """A model cut into balanced stages; every array is by stage.

    Attributes
    ----------
    paths : path of the first block.
    elements : parameters, and ``trained`` of them; ``kept_bytes`` and ``working_bytes`` as in `LayerTable`.
    widest_elements : parameters of the block that has most.
    output_bytes : the most that one stage hands to the next.
    """

    paths: tuple[str, ...]
    forward_s: Floats
    backward_s: Floats
    recompute_s: Floats
    elements: Floats
    trained: Floats
    kept_bytes: Floats
    working_bytes: Floats
    widest_elements: Floats
    output_bytes: int


def cut_stages(layers: LayerTable, num_stages: int, state: StateBytes, balance: Balance = "time") -> Stages:
    """Cut layers into stages whose slowest is as fast as possible, or whose largest is as small as possible.

    Memory is counted with as many microbatches in flight as there are stages, as at the first of 1F1B.
    """
    if balance == "time":
        costs = layers.forward_s + layers.backward_s
    else:
        frozen = layers.param_elements - layers.trained_elements
        kept = model_state_bytes(layers.trained_elements, state, divided=(), num_ranks=1, num_frozen=frozen)
        costs = kept + layers.kept_bytes * num_stages
    starts = [0, *balanced_cuts(costs.tolist(), num_stages)]
    lasts = [start - 1 for start in starts[1:]]

    def total(values: Floats) -> Floats:
        summed: Floats = np.add.reduceat(values, starts)
        return summed

    def largest(values: Floats) -> Floats:
        most: Floats = np.maximum.reduceat(values, starts)
        return most

    return Stages(
        tuple(layers.paths[start] for start in starts),
        total(layers.forward_s),
        total(layers.backward_s),
        total(layers.recompute_s),
        total(layers.param_elements),
        total(layers.trained_elements),
        total(layers.kept_bytes),
        largest(layers.working_bytes),
        largest(layers.param_elements),
        int(layers.output_bytes[lasts].max(initial=0)),
    )


@dataclass(frozen=True)
class Estimate:
    """The predicted cost of a point.

    Attributes
    ----------
    step_s : of one training step.
    memory_bytes : on the fullest device.
    mean_memory_bytes : of all pipeline ranks.
    stage_paths : path of the first block of each stage.
    """

    point: Point
    step_s: float
    memory_bytes: int
    mean_memory_bytes: int
    stage_paths: tuple[str, ...]


def estimate(point: Point, stages: Stages, cluster: Cluster, task: TaskLike) -> Estimate:
    """Time and memory of a point.

    Parameters
    ----------
    stages : of the point's sharding, recomputation and number of stages.
    task : says in which precision parameters are computed with, and how they are updated.
    """
    p = point.pipeline
    weight_bytes = state_of(task.weight_types, task.optimizer).parameters

    def by_rank(values: Floats) -> Floats:
        summed: Floats = values.reshape(-1, p).sum(axis=0)
        return summed

    forward_s, backward_s = by_rank(stages.forward_s), by_rank(stages.backward_s)
    elements, trained = by_rank(stages.elements), by_rank(stages.trained)
    most = float(trained.max())
    device = cluster.device(0)
    shared = point.data if point.zero_stage else 1
    updated_bytes = 4 * most / shared
    passes = sum(BUFFER_OPS[what] for what in task.optimizer.passes)
    optimizer_s = passes * updated_bytes / device.memory_rate_bytes_per_s(updated_bytes)
    slowest = int((forward_s + backward_s).argmax())
    gathered = float(elements.max()) if point.zero_stage == 3 else most
    exposed_s = _data_s(point, most, gathered, backward_s[slowest], cluster, weight_bytes)
    pipeline_s = _pipeline_s(point, stages, forward_s + backward_s, cluster)
    state = model_state_bytes(
        trained,
        state_of(task.weight_types, task.optimizer, point.divided),
        divided=point.divided,
        num_ranks=point.data,
        num_frozen=elements - trained,
    )
    held = in_flight(point.schedule, p, point.num_microbatches, point.stages_per_rank)
    kept = by_rank(stages.kept_bytes) * held
    working = stages.working_bytes.reshape(-1, p).max(axis=0)
    if point.zero_stage == 3:
        working = working + 2 * stages.widest_elements.reshape(-1, p).max(axis=0) * weight_bytes
    used = state + kept + working
    used = used + overhead_bytes(point, cluster, int((kept + working).max()))
    step_s = pipeline_s + exposed_s + optimizer_s
    return Estimate(point, step_s, int(used.max()), int(used.mean()), stages.paths)


def _pipeline_s(point: Point, stages: Stages, per_microbatch_s: Floats, cluster: Cluster) -> float:
    """Until the last backward pass ends: the slowest rank's work, and the ramp before and after it."""
    slowest_s = float(per_microbatch_s.max())
    work_s = slowest_s * point.num_microbatches
    if point.pipeline == 1:
        return work_s
    send_s = _collective_s(cluster, "send", 2, point.data * point.tensor, 1, stages.output_bytes)
    ramp_s = float(per_microbatch_s.sum() - slowest_s) / point.stages_per_rank
    total_s = float((stages.forward_s + stages.backward_s).sum())
    # Of a backward pass without recomputation half is gradients of weights.
    weight_s = float((stages.backward_s - stages.recompute_s).sum()) / 2
    of_forward, of_weights = (round(part_s / total_s, 2) for part_s in (stages.forward_s.sum(), weight_s))
    ramp_s *= ramp_left(
        point.schedule, point.pipeline, point.num_microbatches, point.stages_per_rank, of_forward, of_weights
    )
    return work_s + ramp_s + 2 * (point.pipeline - 1) * send_s


def _data_s(
    point: Point, elements: float, gathered: float, backward_s: float, cluster: Cluster, weight_bytes: float
) -> float:
    """Data-parallel traffic that no computation hides.

    Parameters
    ----------
    elements : whose gradients are reduced; ``gathered`` whose parameters ZeRO gathers.
    """
    if point.data == 1:
        return 0.0

    def cost(kind: str, num_bytes: float) -> float:
        return _collective_s(cluster, kind, point.data, point.tensor, point.tensor, num_bytes)

    if point.zero_stage == 0:
        return max(0.0, cost("all_reduce", elements * _GRADIENT_BYTES) - backward_s)
    scatter_s = cost("reduce_scatter", elements * _GRADIENT_BYTES)
    gather_s = cost("all_gather", gathered * weight_bytes)
    if point.zero_stage == 1:
        return max(0.0, scatter_s - backward_s) + gather_s
    if point.zero_stage == 2:
        return point.num_microbatches * max(0.0, scatter_s - backward_s) + gather_s
    # Parameters are gathered when the first op needs them, in both passes: nothing hides that.
    return point.num_microbatches * (2 * gather_s + max(0.0, scatter_s - backward_s))


def _collective_s(
    cluster: Cluster, kind: str, size: int, stride: int, num_groups: int, num_bytes: float
) -> float:
    """A collective of ``size`` ranks ``stride`` apart, of which ``num_groups`` neighbours run at the same time."""
    if num_bytes <= 0:
        return 0.0
    # To one percent: an estimate needs no more, and so few sizes are distinct.
    rounded = round(math.exp(round(math.log(num_bytes), 2)))
    return _rounded_collective_s(cluster, kind, size, stride, num_groups, rounded)


@lru_cache(maxsize=4096)
def _rounded_collective_s(
    cluster: Cluster, kind: str, size: int, stride: int, num_groups: int, num_bytes: int
) -> float:
    groups = tuple(tuple(first + stride * i for i in range(size)) for first in range(num_groups))
    return collective_cost(cluster, kind, groups[0], num_bytes, groups).seconds


def ramp_left(
    schedule: str,
    num_ranks: int,
    num_microbatches: int,
    stages_per_rank: int,
    of_forward: float,
    of_weights: float,
) -> float:
    """Return the share of a pipeline's filling and draining in which ranks idle: 1 unless a schedule fills it.

    From the times of the schedule's actions on equal stages. It does not depend on how many ranks there are, so of many
    eight stand for all; nor on the microbatches beyond two per rank.

    Parameters
    ----------
    of_forward, of_weights : shares of the forward pass, and of the gradients of weights, in the work of a microbatch.
    """
    ranks = min(num_ranks, 8)
    per_rank = min(num_microbatches / num_ranks, 2.0)
    few = math.ceil(per_rank) * ranks if per_rank >= 1 else max(1, round(per_rank * ranks))
    made = schedule, ranks, few, stages_per_rank
    return _ramp_left(made, of_forward, of_weights if _splits_backward(made) else 0.0)


@lru_cache(maxsize=4096)
def _splits_backward(made: tuple[str, int, int, int]) -> bool:
    return any(action.kind == "W" for own in make_schedule(*made).actions for action in own)


@lru_cache(maxsize=4096)
def _ramp_left(made: tuple[str, int, int, int], of_forward: float, of_weights: float) -> float:
    _, num_ranks, num_microbatches, stages_per_rank = made
    seconds: dict[Kind, float] = {
        "F": of_forward,
        "B": 1 - of_forward,
        "I": max(0.0, 1 - of_forward - of_weights),
        "W": of_weights,
    }
    run = dry_run(make_schedule(*made), seconds)
    return max(0.0, run.makespan_s - num_microbatches * stages_per_rank) / (num_ranks - 1)


@lru_cache(maxsize=4096)
def in_flight(schedule: str, num_ranks: int, num_microbatches: int, stages_per_rank: int) -> Floats:
    """Microbatches whose activations each pipeline rank holds at most, in units of all its stages.

    From the order of the schedule's actions. The schedules of the space hold no more of many microbatches than of two per
    rank.
    """
    few = min(num_microbatches, 2 * num_ranks)
    held: Floats = np.array(peak_awaiting_backward(make_schedule(schedule, num_ranks, few, stages_per_rank)))
    return held / stages_per_rank
