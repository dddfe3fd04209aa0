"""The tasks of transfers: what ranks send to each other after their actions, and the memory that is held for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from trainyard.job.lower.calls import Delivery, Transfer, rank_pairs
from trainyard.job.lower.signatures import Library
from trainyard.job.schedule import Action, Kind
from trainyard.job.simulation.build import Assembly, Ints
from trainyard.job.simulation.memory import Effect, StageMemory
from trainyard.job.simulation.prices import Prices, Seconds


def add_transfers(
    assembly: Assembly, prices: Prices, memory: Mapping[int, StageMemory], library: Library
) -> None:
    """Add sends between ranks, the order they impose between actions, and what is held for them.

    Parameters
    ----------
    library : that moves them. NCCL tells when a value has left; over gloo it is held until its receiver has answered.
    """
    _Writer(assembly, prices, memory, library).run()


class _Writer:
    """Adds the transfers to tasks of actions that are there."""

    def __init__(
        self, assembly: Assembly, prices: Prices, memory: Mapping[int, StageMemory], library: Library
    ) -> None:
        self.assembly, self.prices, self.memory, self.library = assembly, prices, memory, library
        self.builder, self.plan = assembly.builder, assembly.plan
        # The last sends of what a stage makes in an action for another stage, by their kinds and ranks.
        self.held_by: dict[tuple[int, Kind, int, int, int], tuple[list[Delivery], Ints]] = {}
        # The place of the call before which a sender knows that a delivery has arrived.
        calls = assembly.lowered.calls
        self.answered = {d: i for own in calls for i, call in enumerate(own) for d in call.arrived}

    def run(self) -> None:
        for index, transfer in enumerate(self.assembly.lowered.transfers):
            of_pair: dict[tuple[int, int], list[int]] = {}
            for microbatch, pair in enumerate(rank_pairs(self.plan.schedule, transfer)):
                of_pair.setdefault(pair, []).append(microbatch)
            for (source, target), microbatches in of_pair.items():
                self._add(index, transfer, source, target, microbatches)
        for (stage, kind, target_stage, source, _), (deliveries, tasks) in self.held_by.items():
            held = self.memory[stage].actions[kind].sent.get(target_stage, 0)
            if self.library == "nccl":
                self.assembly.memory.add(tasks, source, Effect(0, "communication", 0, -held))
            elif len(tasks):
                self._hold_until_answered(source, deliveries, held)

    def _hold_until_answered(self, source: int, deliveries: Sequence[Delivery], held: int) -> None:
        """Let go of what has been sent when the sender knows that it has arrived, at last with the end of the step."""
        assembly, places = self.assembly, [self.answered[d] for d in deliveries if d in self.answered]
        tasks = np.array([assembly.ends[source][i][0] for i in places], np.int64)
        assembly.memory.add(tasks, source, Effect(0, "communication", -held, 0))
        assembly.start(source, "sends", [], held * (len(deliveries) - len(places)))

    def _add(
        self, index: int, transfer: Transfer, source: int, target: int, microbatches: Sequence[int]
    ) -> None:
        """The microbatches of a transfer from one pipeline rank to another, or to another stage of the same."""
        last = self.assembly.last
        after = [Action(transfer.after, transfer.source, m) for m in microbatches]
        made = np.array([last[action] for action in after])
        key = (transfer.source, transfer.after, transfer.target, source, target)
        if key not in self.held_by:
            held = self.memory[transfer.source].actions[transfer.after].sent.get(transfer.target, 0)
            what = "activations" if source == target else "communication"
            self.assembly.memory.add(made, source, Effect(0, what, 0, held))
        if source == target:
            self.held_by[key] = [], made[:0]
            if transfer.value in self.memory[transfer.target].borrowed:
                self._outlive(transfer, source)
        else:
            part_of = np.array([self.builder.label(str(action)) for action in after])
            tasks = self._send(transfer, source, target, made, part_of)
            self.held_by[key] = [Delivery(index, m) for m in microbatches], tasks
            self._receive(index, transfer, target, microbatches, tasks)

    def _send(self, transfer: Transfer, source: int, target: int, made: Ints, part_of: Ints) -> Ints:
        seconds = self.prices.send_s(transfer, source, target)
        lane = "up" if target > source else "down"
        label, category = self.builder.label(f"send {transfer.value}"), self.builder.category("send")
        links = np.tile(self._crossed(seconds, source, target), (len(made), 1))
        whole, moving = (np.full(len(made), each_s) for each_s in (seconds.whole, seconds.moving))
        tasks = self.assembly.add_work(source, lane, whole, label, category, moving, links, part_of)
        self.builder.add_dependencies(made, tasks)
        self.assembly.start(source, "sends", tasks.tolist())
        self.assembly.sent.append((source, "send", transfer.sent_bytes * len(made), 2))
        return tasks

    def _crossed(self, seconds: Seconds, source: int, target: int) -> tuple[int, int]:
        """The links of two pipeline ranks that a send fills."""
        links = self.assembly.links
        if seconds.moving <= 0:
            return -1, -1
        return (links[source][1], links[target][2]) if seconds.is_between_nodes else (links[source][0], -1)

    def _receive(
        self, index: int, transfer: Transfer, target: int, microbatches: Sequence[int], tasks: Ints
    ) -> None:
        """The receiver posts its buffer some action ahead, and nothing moves before that."""
        assembly, ends = self.assembly, self.assembly.ends[target]
        needed = [assembly.first[Action(transfer.before, transfer.target, m)] for m in microbatches]
        self.builder.add_dependencies(tasks, needed)
        places = [assembly.posted[Delivery(index, m)] for m in microbatches]
        late = [(ends[i - 1][1], t) for i, t in zip(places, tasks, strict=True) if i >= 1]
        if late:
            self.builder.add_dependencies([a for a, _ in late], [t for _, t in late])
        posted = np.array([ends[i][0] for i in places])
        held = transfer.received_bytes(assembly.lowered.rank_of(transfer.target))
        assembly.memory.add(posted, target, Effect(0, "communication", held, 0))

    def _outlive(self, transfer: Transfer, rank: int) -> None:
        """A value that a stage borrows from another one of its rank, and holds longer, counts for that time."""
        assembly, memory = self.assembly, self.memory
        until = {s: memory[s].released.get(transfer.value) for s in (transfer.source, transfer.target)}
        owner, borrower = until[transfer.source], until[transfer.target]
        size = memory[transfer.target].borrowed[transfer.value]
        if owner is None or borrower is None:
            return
        for microbatch in range(self.plan.num_microbatches):
            first = Action(owner, transfer.source, microbatch)
            last = Action(borrower, transfer.target, microbatch)
            if assembly.position[first] < assembly.position[last]:
                assembly.memory.add(assembly.first[first], rank, Effect(0, "activations", size, 0))
                assembly.memory.add(assembly.last[last], rank, Effect(0, "activations", 0, -size))
