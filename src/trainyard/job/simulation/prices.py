"""Seconds of the communication of a plan, on the ranks where it really happens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from trainyard.cost.collectives import collective_cost
from trainyard.cost.ops import BufferOp, OpSeconds
from trainyard.hardware.cluster import Cluster
from trainyard.hardware.devices import DeviceSpec
from trainyard.job.lower.calls import Transfer
from trainyard.job.lower.signatures import Message
from trainyard.job.plan import Plan

Ranks = tuple[int, ...]


class Seconds(NamedTuple):
    """Seconds of a message if no other message of its ranks is on the way.

    Attributes
    ----------
    whole : all of it, and ``moving`` the part in which it fills the links that bound it.
    is_between_nodes : whether these are links between nodes.
    """

    whole: float
    moving: float = 0.0
    is_between_nodes: bool = False


class Prices:
    """Costs of communication and of ops on flat buffers by pipeline rank; remembers its answers.

    Parameters
    ----------
    plan : its meshes say who talks to whom. Rank ``r`` of the plan is rank ``r`` of the cluster.
    """

    def __init__(self, plan: Plan, cluster: Cluster, op_seconds: OpSeconds) -> None:
        self.plan, self.cluster, self.op_seconds = plan, cluster, op_seconds
        self._known: dict[tuple[object, ...], Seconds] = {}
        self._devices: dict[int, tuple[DeviceSpec, ...]] = {}

    def devices(self, pipeline: int) -> tuple[DeviceSpec, ...]:
        """The different devices of a pipeline rank; its work takes as long as on the slowest."""
        if pipeline not in self._devices:
            found = (self.cluster.devices[rank] for rank in self.plan.ranks(pipeline))
            self._devices[pipeline] = tuple(dict.fromkeys(found))
        return self._devices[pipeline]

    def message_s(self, message: Message, pipeline: int) -> Seconds:
        """Seconds of a collective of a pipeline rank, while all its peers do the same."""
        own = () if message.group.pipelines(self.plan) else (pipeline,)
        key = (message.kind, message.group, own, message.num_bytes)
        if key not in self._known:
            groups = message.group.members(self.plan, pipeline)
            self._known[key] = self._cost(message.kind, groups, message.num_bytes)
        return self._known[key]

    def send_s(self, transfer: Transfer, source: int, target: int) -> Seconds:
        """Seconds of a transfer from one pipeline rank to another, while all their peers do the same.

        What one rank sends or gets goes one after the other: it counts as one message to or from one peer.
        """
        key = (transfer.pieces, transfer.dtype, source, target)
        if key not in self._known:
            peers = _disjoint(transfer.peers(self.plan, source, target))
            self._known[key] = self._cost("send", peers, transfer.moved_bytes) if peers else Seconds(0.0)
        return self._known[key]

    def group_size(self, message: Message, pipeline: int) -> int:
        """Ranks that take part in a message of a pipeline rank."""
        return len(message.group.members(self.plan, pipeline)[0])

    def buffer_op_s(self, what: BufferOp, pipeline: int, num_elements: int, element_bytes: int = 4) -> float:
        """Seconds of an op on a flat buffer."""
        return max(
            self.op_seconds.buffer_op_s(what, num_elements, element_bytes, d) for d in self.devices(pipeline)
        )

    def _cost(self, kind: str, groups: Sequence[Ranks], num_bytes: int) -> Seconds:
        first, others = groups[0], tuple(g for g in groups[1:] if len(g) > 1)
        cost = collective_cost(self.cluster, kind, first, num_bytes, others)
        nodes = {self.cluster.node_of[rank] for rank in first}
        return Seconds(cost.seconds, cost.moving_s, len(nodes) > 1)


def _disjoint(pairs: Sequence[Ranks]) -> list[Ranks]:
    """Pairs of which no two have a rank in common: the first, and of the others those that can be added."""
    busy: set[int] = set()
    found = []
    for pair in pairs:
        if busy.isdisjoint(pair):
            busy.update(pair)
            found.append(pair)
    return found
