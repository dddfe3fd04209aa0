"""Memory of a rank as the executor and its state hold it: model state, and values between actions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import fx

from trainyard.cost.memory import GraphMemory, Storage, WorkingBytes, graph_memory, total_bytes
from trainyard.job.lower.buckets import Bucket
from trainyard.job.lower.lower import Lowered, StageProgram, Transfer
from trainyard.job.lower.segment import Segment
from trainyard.job.plan import Plan
from trainyard.job.schedule import Kind
from trainyard.program import spmd
from trainyard.program.program import size_bytes, tensor_of

MEMORY_KINDS = ("parameters", "gradients", "optimizer", "activations", "temporaries", "communication")
"""What memory is used for."""

OPTIMIZER_SLOTS = {"adamw": 2, "sgd": 0}
"""Numbers that an optimizer remembers for each parameter."""

_ORDER: tuple[Kind, ...] = ("F", "I", "W", "B")


@dataclass(frozen=True)
class Effect:
    """A change of the memory in use when a task starts and when it ends, in bytes."""

    task: int
    kind: str
    start_bytes: int
    end_bytes: int


@dataclass(frozen=True)
class ActionMemory:
    """Memory of one action of a stage.

    Attributes
    ----------
    graph : inside the segment.
    received : bytes that arrive from other ranks for it.
    popped : bytes of activations that the action takes over or frees at its start.
    kept : bytes of activations that it leaves for later actions of the same microbatch.
    received_kept : received bytes that become activations, because the caller and not the graph holds them.
    sent : bytes of values that are held only until they are sent, by target stage.
    """

    graph: GraphMemory
    received: int
    popped: int
    kept: int
    received_kept: int
    sent: Mapping[int, int]


def element_bytes(plan: Plan) -> int:
    """Bytes of a parameter in the compute type."""
    return int(getattr(torch, plan.dtype).itemsize)


def is_sharded(plan: Plan, bucket: Bucket) -> bool:
    """Whether the gradients of a bucket are reduced for every microbatch and kept as a part."""
    return bucket.num_shards > 1 and plan.zero_stage >= 2 and len(bucket.stages) == 1


def state_bytes(lowered: Lowered, stages: list[StageProgram], optimizer: str) -> dict[str, int]:
    """Bytes of parameters, gradients and optimizer state that a rank holds all the time, by kind."""
    plan, width = lowered.plan, element_bytes(lowered.plan)
    found = dict.fromkeys(MEMORY_KINDS, 0)
    for bucket in (b for s in stages for b in s.buckets):
        share = bucket.num_elements // bucket.num_shards
        gathered = bucket.num_shards > 1 and plan.zero_stage == 3
        weights = 0 if gathered else bucket.num_elements * width
        # In float32 what the optimizer updates is a part of the weights themselves.
        master = 4 * share if gathered or width != 4 else 0
        found["parameters"] += weights + master
        found["gradients"] += 4 * (share if is_sharded(plan, bucket) else bucket.num_elements)
        found["optimizer"] += 4 * share * OPTIMIZER_SLOTS[optimizer]
    trained = {p for s in stages for b in s.buckets for p in b.paths}
    constants = {
        slot.name
        for s in stages
        for segment in s.segments.values()
        for slot in segment.inputs
        if slot.kind in ("param", "buffer") and slot.name not in trained
    }
    nodes = {i.path: lowered.program.nodes[i.node] for i in lowered.program.inputs}
    found["parameters"] += sum(size_bytes(tensor_of(nodes[path])) for path in constants)
    return found


def action_memory(
    lowered: Lowered, stage: StageProgram, handed_over: frozenset[str], over_gloo: bool = False
) -> dict[Kind, ActionMemory]:
    """Memory of every action of a stage.

    Parameters
    ----------
    handed_over : values that come from another stage of the same rank, which keeps them.
    over_gloo : gathers go through a buffer of their result's size, and what is reduced and scattered is copied
        first, as gloo does and NCCL does not.
    """
    return _Stage(lowered, stage, handed_over, over_gloo).run()


class _Stage:
    """Follows the values of one microbatch through the segments of a stage."""

    def __init__(
        self, lowered: Lowered, stage: StageProgram, handed_over: frozenset[str], over_gloo: bool
    ) -> None:
        self.lowered, self.stage, self.handed_over = lowered, stage, handed_over
        self.over_gloo = over_gloo
        self.buckets = {b.name: b for b in stage.buckets}
        self.kept_names = {
            slot.name for seg in stage.segments.values() for slot in seg.inputs if slot.kind == "value"
        }
        # Storage of every value that the stage holds for a microbatch, and those that make up its activations.
        self.values: dict[str, Storage] = {}
        self.held: set[Storage] = set()
        # Stand-ins, in a graph, for storages that the executor holds while the graph runs.
        self.borrowed: dict[Storage, Storage] = {}

    def run(self) -> dict[Kind, ActionMemory]:
        kinds = [kind for kind in _ORDER if kind in self.stage.segments]
        return {kind: self._action(kind, self.stage.segments[kind]) for kind in kinds}

    def _action(self, kind: Kind, segment: Segment) -> ActionMemory:
        frees = kind in ("B", "W")
        received = self._receive(kind, segment)
        popped = total_bytes(self.held)
        if not frees:
            self.held |= set(received)
        graph = segment.graph
        inputs = {}
        for node, slot in zip((n for n in graph.nodes if n.op == "placeholder"), segment.inputs, strict=True):
            owned = slot.kind == "value" and frees
            inputs[node] = self.values[slot.name] if owned else _NOT_OWNED
            if slot.kind == "value" and not frees:
                inputs[node] = _borrowed(self.values[slot.name], self.borrowed)
        memory = graph_memory(graph, inputs, self._known(graph))
        before = total_bytes(self.held) if not frees else 0
        sent = self._keep(kind, segment, memory, frees)
        received_bytes = total_bytes(set(received))
        return ActionMemory(
            memory,
            received_bytes,
            popped if frees else 0,
            total_bytes(self.held) - before,
            0 if frees else received_bytes,
            sent,
        )

    def _receive(self, kind: Kind, segment: Segment) -> list[Storage]:
        found = []
        for transfer in self.lowered.transfers:
            if transfer.target == self.stage.stage and transfer.before == kind:
                held_elsewhere = transfer.value in self.handed_over
                storage = Storage(0 if held_elsewhere else transfer_bytes(transfer))
                self.values[transfer.value] = storage
                found.append(storage)
        return found

    def _known(self, graph: fx.Graph) -> dict[fx.Node, WorkingBytes]:
        found = {}
        plan, width = self.lowered.plan, element_bytes(self.lowered.plan)
        for node in graph.nodes:
            if node.target not in (spmd.gather_params, spmd.accumulate_grads):
                continue
            bucket = self.buckets[str(node.args[0])]
            share = bucket.num_elements // bucket.num_shards
            if node.target is spmd.gather_params:
                whole = bucket.num_elements * width
                found[node] = WorkingBytes(
                    (0 if width == 4 else share * width) + (whole if self.over_gloo else 0), whole
                )
            elif is_sharded(plan, bucket):
                staged = bucket.num_elements if self.over_gloo else 0
                found[node] = WorkingBytes(4 * (bucket.num_elements + share + staged))
            else:
                found[node] = WorkingBytes(0 if width == 4 else 4 * sum(bucket.sizes))
        return found

    def _keep(self, kind: Kind, segment: Segment, memory: GraphMemory, frees: bool) -> dict[int, int]:
        """Note what stays after an action; return what is held only until it is sent."""
        owner = {stand_in: storage for storage, stand_in in self.borrowed.items()}
        (output,) = (n for n in segment.graph.nodes if n.op == "output")
        made = dict(zip(segment.outputs, output.args[0], strict=True))
        storages = {}
        for name, node in made.items():
            storage = memory.storages[node][0]
            storages[name] = owner.get(storage, storage)
        if frees:
            self.held = set()
        for name, storage in storages.items():
            if name in self.kept_names:
                self.values[name] = storage
                self.held.add(storage)
        sent: dict[int, set[Storage]] = {}
        for transfer in self.lowered.transfers:
            if transfer.source == self.stage.stage and transfer.after == kind:
                storage = storages[transfer.value]
                if storage not in self.held and transfer.value not in self.kept_names:
                    sent.setdefault(transfer.target, set()).add(storage)
        return {target: total_bytes(found) for target, found in sent.items()}


_NOT_OWNED = Storage(0, owned=False)


def _borrowed(storage: Storage, known: dict[Storage, Storage]) -> Storage:
    if storage not in known:
        known[storage] = Storage(storage.num_bytes, owned=False)
    return known[storage]


def transfer_bytes(transfer: Transfer) -> int:
    """Bytes of a value that one rank sends to its peer."""
    return torch.Size(transfer.shape).numel() * int(getattr(torch, transfer.dtype).itemsize)
