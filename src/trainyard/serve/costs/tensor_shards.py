"""A forward graph as one device of a tensor-parallel group runs it, cut by level 1's algebra as Megatron cuts it."""

from __future__ import annotations

from trainyard.job.lower.shard import Sharded, shard
from trainyard.job.plan import PlanError
from trainyard.job.strategies.parallel.megatron import tensor_placements
from trainyard.job.transformer import FUSED_ATTENTION, tensor_parallel_regions
from trainyard.program.placement import REPLICATE
from trainyard.program.program import Program
from trainyard.program.propagate import Axis
from trainyard.serve.errors import ServeError

__all__ = ["tensor_shards"]


def tensor_shards(program: Program, tensor_parallel: int) -> Sharded:
    """Cut a program without a gradient over the devices of a group; inputs are whole on each.

    Parameters
    ----------
    tensor_parallel : devices of the group, two or more.

    Raises
    ------
    ServeError
        If the model cannot be cut so, or its heads do not divide by the number of devices.
    """
    try:
        placements, _ = tensor_placements(program, tensor_parallel)
    except PlanError as error:
        raise ServeError(f"{program.name} cannot be served in {tensor_parallel} shards: {error}") from error
    num_attention = sum(node.target in FUSED_ATTENTION for node in program.graph.nodes)
    if sum(each.is_attention for each in tensor_parallel_regions(program, tensor_parallel)) < num_attention:
        raise ServeError(
            f"{program.name} cannot be served in {tensor_parallel} shards: its heads of keys and values do not divide by "
            "that; use a smaller number"
        )
    wanted = {entry.path: REPLICATE for entry in program.inputs} | placements
    return shard(program, Axis("tensor", tensor_parallel), wanted, sums_before_sending=True)
