"""Memory that a plan's ranks hold beside tensors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from torch import fx

from trainyard.cost.overhead import (
    OVERHEAD_KINDS,
    Communicator,
    communication_buffer_bytes,
    fragmentation_bytes,
)
from trainyard.hardware.cluster import Cluster
from trainyard.job.lower.calls import rank_pairs
from trainyard.job.lower.lower import Lowered
from trainyard.job.lower.signatures import Group, Message, has_signature, rank_context, signature
from trainyard.job.plan import PIPELINE

_WITHIN_A_STEP = ("activations", "temporaries", "communication")


def smallest_device(lowered: Lowered, cluster: Cluster, pipeline: int) -> int:
    """The first of the ranks of a pipeline rank that run what is lowered on whose device a plan may use least."""
    own = (rank for rank in lowered.plan.ranks(pipeline) if lowered.for_rank(rank) is lowered)
    return min(own, key=lambda rank: cluster.devices[rank].usable_bytes)


def communicators(lowered: Lowered, rank: int) -> tuple[Communicator, ...]:
    """The groups in which a rank of a plan communicates, each with its own communicator in a process."""
    plan = lowered.plan
    pipeline = plan.coordinate(rank)[PIPELINE]
    kinds: dict[Group, set[str]] = {}
    for message in _messages(lowered, pipeline):
        kinds.setdefault(message.group, set()).add(message.kind)
    found = [
        Communicator(_own(rank, group.members(plan, pipeline)), frozenset(names))
        for group, names in kinds.items()
    ]
    peers = {
        p
        for t in lowered.transfers
        for pair in set(rank_pairs(plan.schedule, t))
        for p in t.peers(plan, *pair)
    }
    found += [Communicator(p, frozenset({"send"})) for p in sorted(peers) if rank in p and p[0] != p[1]]
    return tuple(c for c in found if len(c.ranks) > 1)


def _messages(lowered: Lowered, pipeline: int) -> Iterator[Message]:
    # The last microbatch sends all that any of them sends.
    context = replace(rank_context(lowered, pipeline), is_last=True)
    segments = (segment for s in lowered.stages_of(pipeline) for segment in s.segments.values())
    graphs: list[fx.Graph] = [segment.graph for segment in segments]
    totals = lowered.totals[pipeline]
    graphs += [totals.graph] if totals is not None else []
    nodes = (node for graph in graphs for node in graph.nodes)
    for node in (*nodes, *lowered.update_nodes(pipeline)):
        message = signature(node, context).message if has_signature(node) else None
        if message is not None:
            yield message


def _own(rank: int, groups: Iterable[tuple[int, ...]]) -> tuple[int, ...]:
    return next(group for group in groups if rank in group)


def overhead_by_kind(
    lowered: Lowered, cluster: Cluster, rank: int, used: Mapping[str, int]
) -> dict[str, int]:
    """Bytes that a rank of a plan holds beside tensors, by kind.

    Parameters
    ----------
    used : bytes of tensors by kind when it uses most.
    """
    overhead = cluster.devices[rank].overhead
    held = (
        overhead.context_bytes,
        communication_buffer_bytes(cluster, rank, communicators(lowered, rank)),
        fragmentation_bytes(overhead, sum(used[kind] for kind in _WITHIN_A_STEP)),
    )
    return dict(zip(OVERHEAD_KINDS, held, strict=True))
