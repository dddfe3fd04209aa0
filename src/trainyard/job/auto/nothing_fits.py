"""The message when no plan fits: what is short, ways out that fit by the estimate, and what was ruled out."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from torch import Tensor
from torch.utils._pytree import tree_leaves

from trainyard.hardware.cluster import Cluster
from trainyard.job.auto.estimate import Estimate
from trainyard.job.auto.points import Estimates, estimate_all, least_estimate
from trainyard.job.auto.probes import Probes
from trainyard.job.auto.space import Point
from trainyard.job.auto.trials import Trials, failed_text
from trainyard.job.plan import DoesNotFitError, PlanError
from trainyard.job.setting import Setting, TaskLike
from trainyard.job.sizes import size_text

_MOST_TIMES = 16  # as many nodes are tried
_DIMENSIONS: tuple[tuple[str, Callable[[Point], object]], ...] = (
    ("tensor", lambda point: point.tensor),
    ("pipeline", lambda point: point.pipeline),
    ("data", lambda point: point.data),
    ("ZeRO stage", lambda point: point.zero_stage),
    ("recomputation", lambda point: point.recompute),
    ("rows of a microbatch on a device", lambda point: point.sharding.rows),
)


def nothing_fits(
    setting: Setting, probes: Probes, estimates: Estimates, trials: Trials, capacity: int
) -> DoesNotFitError:
    """Say what is short, what would fit, and what was ruled out.

    Parameters
    ----------
    capacity : bytes that a plan may use on a device.
    """
    points, smallest = estimates.points, trials.smallest
    least = min(points, key=_memory)
    if smallest is None:
        leanest, short = str(least.point), _shortage(least.memory_bytes, capacity)
    else:
        leanest, short = smallest.name, smallest.simulation.shortage.partition(". ")[0]
    sentences = (
        f"{setting.task.model.name}, with {_rows_text(setting.task)}, does not fit on {setting.cluster.name}: {short}.",
        _ways_text(list(_ways(setting, probes, trials, capacity))),
        f"The plan with the least memory: {leanest}.",
        f"Ruled out: all {len(points)} plans of the search{_by_dimension(points)}.",
        *estimates.left_out,
        *_published(trials),
    )
    return DoesNotFitError(" ".join(sentences))


def _shortage(needed: int, capacity: int) -> str:
    return (
        f"a device needs {size_text(needed)} by estimate, and a plan may use {size_text(capacity)} of its memory: "
        f"{size_text(needed - capacity)} are missing"
    )


def _by_dimension(points: Sequence[Estimate]) -> str:
    """The best and the worst value of each dimension that changes the least memory."""
    parts = []
    for dimension, value_of in _DIMENSIONS:
        least: dict[object, int] = {}
        for e in sorted(points, key=_memory):
            least.setdefault(value_of(e.point), e.memory_bytes)
        values = list(least.items())
        (best, low), (worst, high) = values[0], values[-1]
        if size_text(low) != size_text(high):
            parts.append(f"{dimension} {best} ({size_text(low)}) to {worst} ({size_text(high)})")
    return f", which need least with {'; '.join(parts)}" if parts else ""


def _published(trials: Trials) -> Iterator[str]:
    too_large = [*(t.name for t in trials.found if t.estimate is None), *trials.too_large]
    if too_large:
        yield f"Published systems that need too much memory: {', '.join(too_large)}."
    if trials.untried:
        yield f"Published systems that were not tried, because the model is so large: {', '.join(trials.untried)}."
    yield from failed_text(trials.failures)


def _ways_text(ways: Sequence[str]) -> str:
    if ways:
        return f"What fits by estimate: {'; '.join(ways)}."
    return "Take devices with more memory, a smaller model or smaller rows: nothing else that was tried would fit."


def _rows_text(task: TaskLike) -> str:
    """Return the number of rows as text, with the largest shape of what a row has."""
    tensors = [t for t in tree_leaves(task.model.batch) if isinstance(t, Tensor) and t.dim() > 1]
    shape = max((t.shape[1:] for t in tensors), key=math.prod, default=())
    return f"{task.num_rows} rows" + (f" of {' x '.join(f'{size:,}' for size in shape)}" if shape else "")


def _ways(setting: Setting, probes: Probes, trials: Trials, capacity: int) -> Iterator[str]:
    """Return changes to the request that fit by the estimate, corrected by the simulated plans."""
    fits = partial(_fits, capacity / max(1.0, trials.memory_ratio))
    task, cluster = setting.task, setting.cluster
    if (times := _nodes_that_fit(setting, probes, fits)) is not None:
        yield f"{times * cluster.num_nodes} nodes like {'these' if cluster.num_nodes > 1 else 'this one'}"
    has_bfloat16 = all("bfloat16" in device.peak_flops_per_s for device in cluster.devices)
    is_wider = task.dtype == "float32" and has_bfloat16
    if is_wider and fits(_least_of(setting.of_step(task.num_rows, "bfloat16"))):
        yield "--dtype bfloat16"
    if task.splits or task.num_rows <= cluster.num_devices:
        return
    for rows in dict.fromkeys((task.num_rows // 2, cluster.num_devices)):
        if rows % cluster.num_devices == 0 and fits(_least_of(setting.of_step(rows, task.dtype))):
            yield f"a batch of {rows} rows"
            yield (
                f"microbatches of {rows} rows, each computed by itself, which trains another loss (--statistics "
                "microbatch)"
            )
            return


def _memory(estimated: Estimate) -> int:
    return estimated.memory_bytes


def _fits(capacity: float, least: Estimate | None) -> bool:
    return least is not None and least.memory_bytes <= capacity


def _least_of(setting: Setting) -> Estimate | None:
    """The plan with the least memory of another step."""
    capacity = min(device.usable_bytes for device in setting.cluster.devices)
    try:
        found = estimate_all(setting, Probes(setting), capacity).points
    except PlanError:  # of a step that cannot run
        return None
    return min(found, key=_memory, default=None)


def _nodes_that_fit(setting: Setting, probes: Probes, fits: Callable[[Estimate | None], bool]) -> int | None:
    """Return how many times as many nodes are needed; None if many do not suffice, or no others can be had."""
    cluster = setting.cluster
    if cluster.profile is not None:  # of this machine
        return None
    times = 2
    while times <= _MOST_TIMES:
        larger = Cluster(f"{times} times {cluster.name}", cluster.nodes * times)
        if fits(least_estimate(replace(setting, cluster=larger), probes)):
            return times
        times *= 2
    return None
