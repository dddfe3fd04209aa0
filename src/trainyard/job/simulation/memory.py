"""Memory of a rank as the executor and its state hold it: model state, and values between actions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import fx

from trainyard.cost.memory import GraphMemory, Storage, WorkingBytes, graph_memory, total_bytes
from trainyard.cost.overhead import OVERHEAD_KINDS
from trainyard.job.footprint import node_bytes, storage_of
from trainyard.job.lower.calls import Transfer
from trainyard.job.lower.lower import Lowered
from trainyard.job.lower.segment import Segment
from trainyard.job.lower.signatures import RankContext, has_signature, signature
from trainyard.job.lower.stage_program import StageProgram
from trainyard.job.schedule import Kind
from trainyard.program.program import size_bytes, tensor_of

OLDER_WEIGHTS = "older weights"

TENSOR_KINDS = (
    "parameters",
    OLDER_WEIGHTS,
    "gradients",
    "optimizer",
    "activations",
    "temporaries",
    "communication",
)
"""What tensors are for. Older weights are parameters as they were before an update, for microbatches in flight."""

MEMORY_KINDS = (*TENSOR_KINDS, *OVERHEAD_KINDS)
"""What memory is used for."""

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
    """Memory of one action of a stage, in bytes.

    Attributes
    ----------
    graph : inside the segment.
    received : values that arrive from other ranks for it.
    at_start : change of the activations when it starts: what arrives to stay, less what the graph takes over.
    kept : activations that it leaves for later actions of the same microbatch.
    sent : values that are held only until they are sent or, on the same rank, taken over, by target stage.
    """

    graph: GraphMemory
    received: int
    at_start: int
    kept: int
    sent: Mapping[int, int]


@dataclass(frozen=True)
class StageMemory:
    """Memory of a stage while it works on one microbatch.

    Attributes
    ----------
    actions : by kind.
    borrowed : bytes of values that come from another stage of the same rank, which goes on holding them; of
        values in the same memory the first.
    released : the last kind of action that holds the memory of a value made by the stage or received.
    """

    actions: Mapping[Kind, ActionMemory]
    borrowed: Mapping[str, int]
    released: Mapping[str, Kind]


def state_bytes(lowered: Lowered, stages: list[StageProgram]) -> dict[str, int]:
    """Bytes of parameters, gradients and optimizer state that a rank holds all the time, by kind."""
    found = dict.fromkeys(MEMORY_KINDS, 0)
    for bucket in (b for s in stages for b in s.buckets):
        share = bucket.num_elements // bucket.num_shards
        weights = 0 if bucket.parameters_shared else bucket.num_elements * bucket.element_bytes
        # In float32 what the optimizer updates is a part of the weights themselves.
        master = 4 * share if bucket.parameters_shared or bucket.is_converted else 0
        found["parameters"] += weights + master
        found["gradients"] += 4 * (share if bucket.gradients_shared else bucket.num_elements)
        found["optimizer"] += round(share * lowered.optimizer.state_bytes)
    found["parameters"] += sum(b.share * b.element_bytes for s in stages for b in s.frozen)
    trained = {p for s in stages for b in s.buckets for p in b.paths}
    constants = {
        slot.name: size_bytes(tensor_of(node))
        for s in stages
        for segment in s.segments.values()
        for node, slot in zip(segment.graph.find_nodes(op="placeholder"), segment.inputs, strict=True)
        if slot.kind in ("param", "buffer") and slot.name not in trained
    }
    found["parameters"] += sum(constants.values())
    program = lowered.program
    totals = (program.nodes[i.node] for i in program.inputs if i.kind == "total")
    found["activations"] += sum(size_bytes(tensor_of(node)) for node in totals)
    return found


def totals_memory(segment: Segment, context: RankContext) -> GraphMemory:
    """Memory of what is computed of the whole batch before the first microbatch."""
    placeholders = (n for n in segment.graph.nodes if n.op == "placeholder")
    known = working_bytes(segment.graph, context)
    return graph_memory(segment.graph, dict.fromkeys(placeholders, _NOT_OWNED), known)


def stage_memory(lowered: Lowered, stage: StageProgram, context: RankContext) -> StageMemory:
    """Memory of every action of a stage."""
    return _Stage(lowered, stage, context).run()


class _Stage:
    """Follows the values of one microbatch through the segments of a stage, as the executor does."""

    def __init__(self, lowered: Lowered, stage: StageProgram, context: RankContext) -> None:
        self.lowered, self.stage, self.context = lowered, stage, context
        ranks_of = lowered.plan.schedule.ranks_of
        self.neighbours = {s.stage for s in lowered.stages if ranks_of(s.stage) == ranks_of(stage.stage)}
        self.borrowed: dict[str, int] = {}
        # Storage of every value that the stage holds at the moment, and of all that it made or received.
        self.values: dict[str, Storage] = {}
        self.known: dict[str, Storage] = {}
        self.released: dict[str, Kind] = {}

    def run(self) -> StageMemory:
        kinds = [kind for kind in _ORDER if kind in self.stage.segments]
        actions = {kind: self._action(kind, self.stage.segments[kind]) for kind in kinds}
        return StageMemory(actions, self.borrowed, self.released)

    def _action(self, kind: Kind, segment: Segment) -> ActionMemory:
        self._take_over(kind)
        before = total_bytes(set(self.values.values()))
        received = self._receive(kind)
        taken = {slot.name: self.values[slot.name] for slot in segment.inputs if slot.kind == "value"}
        for name in self.stage.freed[kind]:
            del self.values[name]
        held = set(self.values.values())
        # The graph owns what nobody else holds; for the rest it has stand-ins.
        stand_ins = {s: Storage(s.num_bytes, owned=False) for s in taken.values() if s in held}
        graph = segment.graph
        placeholders = (n for n in graph.nodes if n.op == "placeholder")
        inputs = dict.fromkeys(placeholders, _NOT_OWNED)
        for node, slot in zip(inputs, segment.inputs, strict=True):
            if slot.kind == "value":
                inputs[node] = stand_ins.get(taken[slot.name], taken[slot.name])
        memory = graph_memory(graph, inputs, working_bytes(graph, self.context))
        made = _storages_made(segment, memory, {v: k for k, v in stand_ins.items()})
        self.values |= {name: made[name] for name in self.stage.kept[kind]}
        self.known |= made
        left = set(self.values.values())
        for name, storage in self.known.items():
            if storage.owned and storage not in left:
                self.released.setdefault(name, kind)
        return ActionMemory(
            memory,
            received,
            total_bytes(held) - before,
            total_bytes(left) - total_bytes(held),
            self._sent(kind, made, left),
        )

    def _take_over(self, kind: Kind) -> None:
        """Hold what other stages of the rank hand over for an action."""
        taken_over: dict[fx.Node, Storage] = {}
        for transfer in self._arriving(kind):
            if transfer.source in self.neighbours:
                owner, stays = _owner(self.lowered.stages[transfer.source], transfer)
                if owner not in taken_over:
                    taken_over[owner] = Storage(0 if stays else node_bytes(owner))
                    self.borrowed |= {transfer.value: node_bytes(owner)} if stays else {}
                self.values[transfer.value] = self.known[transfer.value] = taken_over[owner]

    def _receive(self, kind: Kind) -> int:
        """Hold what other ranks send for an action; its bytes."""
        received = 0
        for transfer in self._arriving(kind):
            if transfer.source not in self.neighbours:
                storage = Storage(transfer.received_bytes(self.lowered.rank_of(transfer.target)))
                self.values[transfer.value] = self.known[transfer.value] = storage
                received += storage.num_bytes
        return received

    def _arriving(self, kind: Kind) -> list[Transfer]:
        own = self.stage.stage
        return [t for t in self.lowered.transfers if t.target == own and t.before == kind]

    def _sent(self, kind: Kind, made: Mapping[str, Storage], held: set[Storage]) -> dict[int, int]:
        """Return the values that are held only until they are sent, or until another stage of the rank takes them."""
        sent: dict[int, dict[Any, int]] = {}
        for transfer in self.lowered.transfers:
            if transfer.source != self.stage.stage or transfer.after != kind:
                continue
            found = sent.setdefault(transfer.target, {})
            storage = made[transfer.value]
            if transfer.target in self.neighbours:
                owner, stays = _owner(self.stage, transfer)
                found[owner, transfer.before] = 0 if stays else node_bytes(owner)
            elif storage not in held:
                found[storage] = total_bytes({storage})
        return {target: sum(found.values()) for target, found in sent.items()}


def working_bytes(graph: fx.Graph, context: RankContext) -> dict[fx.Node, WorkingBytes]:
    """Memory of a graph's ops beside their operands and results, by their signatures."""
    does = {n: signature(n, context) for n in graph.nodes if has_signature(n)}
    return {node: WorkingBytes(found.working_bytes, found.result_bytes) for node, found in does.items()}


_NOT_OWNED = Storage(0, owned=False)


def _storages_made(
    segment: Segment, memory: GraphMemory, originals: Mapping[Storage, Storage]
) -> dict[str, Storage]:
    """Storages of a segment's outputs by name."""
    (output,) = (n for n in segment.graph.nodes if n.op == "output")
    found = {}
    for name, node in zip(segment.outputs, output.args[0], strict=True):
        storage = memory.storages[node][0]
        found[name] = originals.get(storage, storage)
    return found


def _owner(stage: StageProgram, transfer: Transfer) -> tuple[fx.Node, bool]:
    """The node that owns the memory of an output, and whether the stage itself goes on holding that memory.

    It may do so under the name of another value, or as a parameter or an input.
    """
    segment, kind = stage.segments[transfer.after], transfer.after
    (output,) = (n for n in segment.graph.nodes if n.op == "output")
    owner = {name: storage_of(n) for name, n in zip(segment.outputs, output.args[0], strict=True)}
    found = owner[transfer.value]
    placeholders = (n for n in segment.graph.nodes if n.op == "placeholder")
    slot = dict(zip(placeholders, segment.inputs, strict=True)).get(found)
    is_input = slot is not None and not (slot.kind == "value" and slot.name in stage.freed[kind])
    return found, is_input or found in {owner[name] for name in stage.kept[kind]}
