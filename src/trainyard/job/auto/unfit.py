"""Messages when no plan fits: what was ruled out and by how much, and changes that fit by the estimate."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from trainyard.hardware.cluster import Cluster
from trainyard.job.auto.estimate import Estimate
from trainyard.job.auto.points import Estimates, estimate_all, least_estimate
from trainyard.job.auto.probes import Probes
from trainyard.job.auto.space import Point
from trainyard.job.auto.trials import Trials
from trainyard.job.plan import DoesNotFitError, PlanError
from trainyard.job.setting import Setting
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
    """Say what was ruled out, dimension by dimension, and what would fit.

    Parameters
    ----------
    capacity : bytes that a plan may use on a device.
    """
    points = estimates.points
    least, smallest = min(points, key=lambda e: e.memory_bytes), trials.smallest
    name, place = setting.task.model.name, setting.cluster.name
    if smallest is None:
        short = f"needs {size_text(least.memory_bytes)}, by estimate: {least.point}."
    else:
        needed = size_text(smallest.simulation.peak_memory_bytes)
        short = f"is, of those that were simulated, {smallest.name}, which needs {needed}."
    sentences = (
        f"{name} does not fit on {place}: of {len(points)} plans none fits the {size_text(capacity)} that a plan may use "
        f"of a device. The one with the least memory {short}",
        f"Least memory on a device, {_by_dimension(points)}.",
        *estimates.left_out,
        *_published(trials),
        _ways_text(list(_ways(setting, probes, points, trials, capacity))),
    )
    return DoesNotFitError(" ".join(sentences))


def _by_dimension(points: Sequence[Estimate]) -> str:
    """The least memory of all plans with the same value of a dimension, where there are several values."""
    parts = []
    for what, value_of in _DIMENSIONS:
        least: dict[object, int] = {}
        for e in points:
            value = value_of(e.point)
            least[value] = min(least.get(value, e.memory_bytes), e.memory_bytes)
        if len(least) > 1:
            parts.append(f"by {what}: " + ", ".join(f"{v} ({size_text(n)})" for v, n in least.items()))
    return "; ".join(parts) or f"in all plans: {size_text(points[0].memory_bytes)}"


def _published(trials: Trials) -> Iterator[str]:
    unfit = [
        f"{t.name} ({size_text(t.simulation.peak_memory_bytes)})" for t in trials.found if t.estimate is None
    ]
    if unfit:
        yield f"Published systems that need more: {', '.join(unfit)}."
    if trials.too_large:
        yield f"Published systems whose model state alone is too large: {', '.join(trials.too_large)}."
    if trials.untried:
        yield f"Published systems that were not tried, because the model is so large: {', '.join(trials.untried)}."
    if trials.failures:
        whys = (failure.split("; ")[0].rstrip(".") for failure in trials.failures)  # without advice
        yield f"Plans that cannot be made: {'; '.join(whys)}."


def _ways_text(ways: Sequence[str]) -> str:
    if ways:
        return f"What fits by estimate: {'; '.join(ways)}."
    return "Take devices with more memory, or a smaller model: nothing else that was tried would fit."


def _ways(
    setting: Setting, probes: Probes, points: Sequence[Estimate], trials: Trials, capacity: int
) -> Iterator[str]:
    """Return changes to the request that fit by the estimate, corrected by the simulated plans."""
    fits = partial(_fits, capacity / max(1.0, trials.memory_ratio))
    task, cluster = setting.task, setting.cluster
    if (times := _nodes_that_fit(setting, probes, fits)) is not None:
        yield f"{times * cluster.num_nodes} nodes like {'these' if cluster.num_nodes > 1 else 'this one'}"
    has_bfloat16 = all("bfloat16" in device.peak_flops_per_s for device in cluster.devices)
    is_wider = task.dtype == "float32" and has_bfloat16
    if is_wider and fits(_least_of(setting.of_step(task.num_rows, "bfloat16"))):
        yield "--dtype bfloat16"
    fewest = min(e.point.sharding.rows * e.point.data * e.point.num_microbatches for e in points)
    if task.splits or fewest <= cluster.num_devices:
        return
    for rows in dict.fromkeys((task.num_rows // 2, cluster.num_devices)):
        if rows % cluster.num_devices == 0 and fits(_least_of(setting.of_step(rows, task.dtype))):
            yield f"a batch of {rows} rows"
            yield (
                f"microbatches of {rows} rows, each computed by itself, which trains another loss (--statistics "
                "microbatch)"
            )
            return


def _fits(capacity: float, least: Estimate | None) -> bool:
    return least is not None and least.memory_bytes <= capacity


def _least_of(setting: Setting) -> Estimate | None:
    """The plan with the least memory of another step."""
    capacity = min(device.usable_bytes for device in setting.cluster.devices)
    try:
        found = estimate_all(setting, Probes(setting), capacity).points
    except PlanError:  # of a step that cannot run
        return None
    return min(found, key=lambda e: e.memory_bytes, default=None)


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
