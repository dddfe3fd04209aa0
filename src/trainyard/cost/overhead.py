"""Memory of a device that a rank holds beside its tensors, by kind."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from trainyard.hardware.cluster import Cluster
from trainyard.hardware.overhead import MemoryOverhead

__all__ = [
    "FRAGMENTATION",
    "OVERHEAD_KINDS",
    "Communicator",
    "communication_buffer_bytes",
    "fragmentation_bytes",
]

FRAGMENTATION = "fragmentation"
OVERHEAD_KINDS = ("context", "communication buffers", FRAGMENTATION)
"""What memory is used for beside tensors."""


@dataclass(frozen=True)
class Communicator:
    """Ranks that communicate with each other, each group through buffers of its own.

    Attributes
    ----------
    ranks : of the cluster.
    kinds : what they do, as `collective_cost` names it; a send has one direction.
    """

    ranks: tuple[int, ...]
    kinds: frozenset[str]


def communication_buffer_bytes(cluster: Cluster, rank: int, communicators: Iterable[Communicator]) -> int:
    """Bytes that the communication library holds on a rank.

    A ring has one neighbour in each direction on every channel; the trees of an all-reduce use the same neighbours the
    other way round. Sends and all-to-all have channels to each peer; those to other nodes share one pool. Buffers are
    made with the first use of an algorithm (NCCL 2.22 and later), so only the kinds that are used count.

    Parameters
    ----------
    cluster : its devices say how many channels there are, and how large their buffers.
    rank : of the cluster.
    communicators : of which the rank is a member.
    """
    overhead = cluster.devices[rank].overhead
    if not overhead.channel_bytes:
        return 0
    node = cluster.node_of[rank]
    channels = sum(
        _num_channels(overhead, c, sum(cluster.node_of[r] == node for r in c.ranks)) for c in communicators
    )
    return int(channels * overhead.channel_bytes)


def _num_channels(overhead: MemoryOverhead, communicator: Communicator, num_local: int) -> float:
    """Channels in both directions that a rank has in a communicator with so many ranks on its node."""
    size, kinds = len(communicator.ranks), communicator.kinds
    is_local = num_local == size
    per_peer = overhead.peer_channels if is_local else overhead.network_channels
    found = 0.0
    if kinds & {"all_reduce", "all_gather", "reduce_scatter"}:
        both_ways = 2 if "all_reduce" in kinds and size > 2 else 1
        across = min(overhead.channels, overhead.network_channels * num_local)
        found += both_ways * (overhead.channels if is_local else across)
    if "all_to_all" in kinds:
        found += per_peer * (num_local - 1 + (not is_local))
    if "send" in kinds:
        found += per_peer / 2
    return found


def fragmentation_bytes(overhead: MemoryOverhead, num_bytes: int) -> int:
    """Bytes that the allocator holds and cannot give out.

    Parameters
    ----------
    num_bytes : most that a step takes and gives back.
    """
    return overhead.segment_bytes + int(overhead.fragmented_fraction * num_bytes)
