"""Memory that the ranks of a point hold beside tensors."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from trainyard.cost.overhead import Communicator, communication_buffer_bytes, fragmentation_bytes
from trainyard.hardware.cluster import Cluster
from trainyard.job.auto.space import Point


def overhead_bytes(point: Point, cluster: Cluster, num_bytes: int) -> int:
    """Bytes that a rank in the middle of the pipeline holds beside tensors.

    Groups that only the lowering knows are not in it: of stages that share a parameter, and an all-to-all where an op is
    cut in another way than its operand.

    Parameters
    ----------
    num_bytes : most that a step takes and gives back.
    """
    overhead = cluster.device(0).overhead
    mesh = (point.pipeline, point.data, point.tensor)
    buffers = _buffer_bytes(cluster, mesh, point.sharding.expert, point.stages_per_rank > 1)
    return overhead.context_bytes + buffers + fragmentation_bytes(overhead, num_bytes)


@lru_cache(maxsize=4096)
def _buffer_bytes(
    cluster: Cluster, mesh: tuple[int, int, int], has_all_to_all: bool, is_circular: bool
) -> int:
    """Buffers of the groups of all ranks, of each axis, of buckets, and of the two directions to each neighbour.

    Losses are summed along the axes of data within the passes, apart from gradients and weights, which have a group of
    their own.
    """
    pipeline, data, tensor = mesh
    per_stage = data * tensor
    at = min(1, pipeline - 1)
    rank = at * per_stage
    along_data = range(rank, rank + per_stage, tensor)
    groups: list[tuple[Sequence[int], set[str]]] = [
        (range(pipeline * per_stage), {"all_reduce"}),
        (along_data, {"all_reduce"} | ({"all_to_all"} if has_all_to_all else set())),
        (along_data, {"all_reduce"}),
        (range(rank, rank + tensor), {"all_reduce"}),
    ]
    if pipeline > 1:
        steps = [step for step in (-1, 1) if is_circular or 0 <= at + step < pipeline]
        groups += [((rank, (at + step) % pipeline * per_stage), {"send"}) for step in steps for _ in range(2)]
    communicators = [
        Communicator(tuple(ranks), frozenset(kinds)) for ranks, kinds in groups if len(ranks) > 1
    ]
    return communication_buffer_bytes(cluster, rank, communicators)
