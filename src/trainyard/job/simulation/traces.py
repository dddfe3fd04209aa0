"""Traces to measure for a lowered plan: the segments of each stage, in order."""

from __future__ import annotations

from dataclasses import replace

from trainyard.cost.measured import Conditions, MeasuredOps, measure_ops
from trainyard.cost.trace import Trace, trace_graph
from trainyard.hardware.cluster import Cluster
from trainyard.hardware.errors import HardwareError
from trainyard.job.lower.lower import Lowered
from trainyard.job.lower.segment import Segment
from trainyard.job.schedule import Kind
from trainyard.progress import Progress, no_progress

_ORDER: tuple[Kind, ...] = ("F", "I", "B", "W")


def traces_of(lowered: Lowered) -> list[tuple[Trace, ...]]:
    """Return the traces of one microbatch for every stage, and of what is computed before the first, if anything."""
    segments = [
        [stage.segments[kind] for kind in _ORDER if kind in stage.segments] for stage in lowered.stages
    ]
    segments += [[segment] for segment in dict.fromkeys(lowered.totals) if segment is not None]
    return [tuple(map(_trace_of, own)) for own in segments]


def _trace_of(segment: Segment) -> Trace:
    inputs = [f"{slot.kind}:{slot.name}" for slot in segment.inputs]
    return trace_graph(segment.graph, inputs, [f"value:{name}" for name in segment.outputs])


def measured_ops(
    lowered: Lowered | list[Lowered],
    cluster: Cluster,
    num_threads: int | None = None,
    budget_s: float = 15.0,
    again: bool = False,
    progress: Progress = no_progress,
) -> MeasuredOps:
    """Seconds of the ops of plans on this machine, as they are when all processes of a plan compute.

    Parameters
    ----------
    lowered : plans of the same number of ranks.
    cluster : ``local_cluster(n)``.
    num_threads : of each process; by default an even share of the cores, as the runtime takes.
    budget_s, again, progress : see `measure_ops`.

    Raises
    ------
    HardwareError
        If the cluster is not this machine.
    """
    plans = lowered if isinstance(lowered, list) else [lowered]
    if cluster.num_cores is None:
        raise HardwareError(
            f"cluster {cluster.name!r} is not this machine; ops can be measured on local:N only"
        )
    ranks = {one.plan.num_ranks for one in plans}
    if len(ranks) != 1:
        raise HardwareError(f"plans of {sorted(ranks)} ranks; give those of one number of ranks at a time")
    groups = [group for one in plans for variant in one.variants for group in traces_of(variant)]
    conditions = Conditions.of(ranks.pop(), cluster.num_cores)
    if num_threads is not None:
        conditions = replace(conditions, num_threads=num_threads)
    return measure_ops(groups, conditions, budget_s, again, progress)
