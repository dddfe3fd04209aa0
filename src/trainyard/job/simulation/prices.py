"""Seconds of the communication of a plan, on the ranks where it really happens."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from trainyard.cost.collectives import collective_cost
from trainyard.cost.ops import BufferOp, OpSeconds
from trainyard.hardware.cluster import Cluster
from trainyard.hardware.devices import DeviceSpec
from trainyard.job.lower.signatures import EVERYONE, Message
from trainyard.job.plan import AXES, DATA, PIPELINE, TENSOR, Plan

Group = tuple[int, ...]


class Prices:
    """What communication and ops on flat buffers cost each pipeline rank; remembers what it was asked.

    Parameters
    ----------
    plan : its mesh says who talks to whom. Rank ``r`` of the plan is rank ``r`` of the cluster.
    """

    def __init__(self, plan: Plan, cluster: Cluster, op_seconds: OpSeconds) -> None:
        self.plan, self.cluster, self.op_seconds = plan, cluster, op_seconds
        self._known: dict[tuple[object, ...], float] = {}
        self._devices: dict[int, tuple[DeviceSpec, ...]] = {}
        self._sizes = {PIPELINE: plan.pipeline, DATA: plan.data, TENSOR: plan.tensor}

    def devices(self, pipeline: int) -> tuple[DeviceSpec, ...]:
        """The different devices of a pipeline rank; its work takes as long as on the slowest."""
        if pipeline not in self._devices:
            pairs = product(range(self.plan.data), range(self.plan.tensor))
            found = (self.cluster.devices[self.plan.rank_at(pipeline, d, t)] for d, t in pairs)
            self._devices[pipeline] = tuple(dict.fromkeys(found))
        return self._devices[pipeline]

    def collective_s(self, kind: str, axis: str, pipeline: int, num_bytes: int) -> float:
        """Seconds of a collective along a mesh axis, while the other groups of that pipeline rank do the same."""
        key = (kind, axis, pipeline, num_bytes)
        if key not in self._known:
            other = TENSOR if axis == DATA else DATA
            groups = [
                self._group(axis, {PIPELINE: pipeline, other: index}) for index in range(self._sizes[other])
            ]
            self._known[key] = self._cost(kind, groups, num_bytes)
        return self._known[key]

    def send_s(self, source: int, target: int, num_bytes: int) -> float:
        """Seconds of a transfer from one pipeline rank to another, while all their peers do the same."""
        key = ("send", source, target, num_bytes)
        if key not in self._known:
            pairs = [
                (self.plan.rank_at(source, d, t), self.plan.rank_at(target, d, t))
                for d, t in product(range(self.plan.data), range(self.plan.tensor))
            ]
            self._known[key] = self._cost("send", pairs, num_bytes)
        return self._known[key]

    def pipeline_ranks(self, message: Message) -> Group | None:
        """The pipeline ranks that take part in a message together; None where each has its own, along an axis."""
        if message.group == EVERYONE:
            return tuple(range(self.plan.pipeline))
        if isinstance(message.group, str):
            return None
        return self.plan.schedule.ranks_with(message.group)

    def group_size(self, message: Message) -> int:
        """Ranks that take part in a message."""
        if message.group == EVERYONE:
            return self.plan.num_ranks
        together = self.pipeline_ranks(message)
        return self._sizes[str(message.group)] if together is None else len(together)

    def message_s(self, message: Message, pipeline: int) -> float:
        """Seconds of a collective of a pipeline rank, while all its peers do the same."""
        together = self.pipeline_ranks(message)
        if together is None:
            return self.collective_s(message.kind, str(message.group), pipeline, message.num_bytes)
        if message.group == EVERYONE:
            return self._cost(message.kind, [tuple(range(self.plan.num_ranks))], message.num_bytes)
        groups = [
            tuple(self.plan.rank_at(p, d, t) for p in together)
            for d, t in product(range(self.plan.data), range(self.plan.tensor))
        ]
        return self._cost(message.kind, groups, message.num_bytes)

    def buffer_op_s(self, what: BufferOp, pipeline: int, num_elements: int, element_bytes: int = 4) -> float:
        """Seconds of an op on a flat buffer."""
        return max(
            self.op_seconds.buffer_op_s(what, num_elements, element_bytes, d) for d in self.devices(pipeline)
        )

    def _group(self, axis: str, fixed: dict[str, int]) -> Group:
        assert set(fixed) | {axis} == set(AXES)
        return tuple(self.plan.rank_at(**fixed, **{axis: i}) for i in range(self._sizes[axis]))

    def _cost(self, kind: str, groups: Sequence[Group], num_bytes: int) -> float:
        first, others = groups[0], tuple(g for g in groups[1:] if len(g) > 1)
        return collective_cost(self.cluster, kind, first, num_bytes, others).seconds
