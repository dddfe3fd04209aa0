"""The task graph of a step: one device per pipeline rank, its actions in schedule order, then the optimizer.

The ranks of a mesh do the same at the same time, so one stands for them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from trainyard.engine.builder import TaskGraphBuilder
from trainyard.engine.categories import STANDARD_CATEGORIES
from trainyard.hardware.cluster import Cluster
from trainyard.job.lower.calls import Delivery, Transfer, rank_pairs
from trainyard.job.lower.lower import Lowered
from trainyard.job.lower.signatures import UPDATE
from trainyard.job.schedule import Action, Kind
from trainyard.job.simulation.memory import MEMORY_KINDS, Effect, StageMemory, transfer_bytes
from trainyard.job.simulation.prices import Prices
from trainyard.job.simulation.template import Template, lanes_of

Ints = NDArray[np.int64]

# Seconds become flows of this many units, because links are made for bytes.
_UNITS_PER_S = 1e9

_COMMUNICATION = [name for name, kind in STANDARD_CATEGORIES.items() if kind == "communication"]


@dataclass(frozen=True)
class Lanes:
    """Resources and links of one pipeline rank by what runs there."""

    resources: Mapping[str, int]
    links: Mapping[str, tuple[int, ...]]
    units_per_s: Mapping[str, float]


@dataclass
class UnderWay:
    """Tasks that a later one waits for, and bytes that are held until then."""

    tasks: list[int] = field(default_factory=list)
    held_bytes: int = 0


MemoryColumns = tuple[Ints, Ints, Ints, Ints, Ints]
"""Task, device, kind, bytes at the start, bytes at the end: a row for every effect."""


@dataclass
class Recorder:
    """Memory effects of all tasks, in columns."""

    task: list[Ints]
    device: list[Ints]
    kind: list[Ints]
    start_bytes: list[Ints]
    end_bytes: list[Ints]

    @classmethod
    def empty(cls) -> Recorder:
        return cls([], [], [], [], [])

    def add(self, tasks: Ints | int, device: int, effect: Effect) -> None:
        """The same effect at each of some tasks; ``effect.task`` is not looked at."""
        ids = np.atleast_1d(np.asarray(tasks, np.int64))
        for column, value in (
            (self.device, device),
            (self.kind, MEMORY_KINDS.index(effect.kind)),
            (self.start_bytes, effect.start_bytes),
            (self.end_bytes, effect.end_bytes),
        ):
            column.append(np.full(len(ids), value, np.int64))
        self.task.append(ids)

    def columns(self) -> MemoryColumns:
        lists = (self.task, self.device, self.kind, self.start_bytes, self.end_bytes)
        return tuple(np.concatenate(c) if c else np.zeros(0, np.int64) for c in lists)  # type: ignore[return-value]


class Assembly:
    """Tasks of all pipeline ranks.

    Attributes
    ----------
    base : bytes by kind that each pipeline rank holds all the time.
    first, last : ids of the first and the last task of every action on a microbatch.
    ends : the same two of every action of a rank, in order.
    position : of every action on a microbatch in its rank's list.
    tail : last task so far on the compute stream of each pipeline rank.
    under_way : what each rank has started and not yet waited for, by its subject.
    work_s : seconds of computing of each pipeline rank, as if it had its cores for itself.
    sent : pipeline rank, kind, bytes as collectives count them, and ranks of the group.
    """

    def __init__(self, lowered: Lowered, cluster: Cluster) -> None:
        self.lowered, self.plan, self.cluster = lowered, lowered.plan, cluster
        self.builder = TaskGraphBuilder()
        self.memory = Recorder.empty()
        self.first: dict[Action, int] = {}
        self.last: dict[Action, int] = {}
        self.ends: list[list[tuple[int, int]]] = [[] for _ in range(self.plan.pipeline)]
        self.tail: dict[int, int] = {}
        self.under_way: list[dict[str, UnderWay]] = [{} for _ in range(self.plan.pipeline)]
        self.sent: list[tuple[int, str, int, int]] = []
        self.base: list[dict[str, int]] = []
        self.lanes: list[Lanes] = []
        self.lane_names = lanes_of(self.plan)
        # The place of the call before which each delivery is posted.
        self.posted = {d: i for calls in lowered.calls for i, call in enumerate(calls) for d in call.posts}
        self.position = {a: i for actions in self.plan.schedule.actions for i, a in enumerate(actions)}
        self.work_s = [0.0] * self.plan.pipeline

    def add_ranks(self, base: list[dict[str, int]]) -> None:
        """Add the device, the streams and, on this machine, the cores of every pipeline rank."""
        self.base = base
        builder = self.builder
        num_cores = self.cluster.num_cores
        shared = num_cores is not None
        # A representative has the share of the cores that its peers leave it.
        cores = (num_cores or 0) / self.plan.mesh.num_ranks
        machine = builder.add_link("cores", cores * _UNITS_PER_S) if shared else -1
        threads = max(1, (num_cores or 1) // self.plan.num_ranks)
        for rank in range(self.plan.pipeline):
            device = builder.add_device(f"pipeline rank {rank}", sum(base[rank].values()))
            resources, links, units = {}, {}, {}
            for lane in self.lane_names:
                kind = "compute" if lane == "compute" else "communication"
                resources[lane] = builder.add_resource(f"rank {rank} {lane}", device, kind)  # type: ignore[arg-type]
                if shared:
                    # Ops are measured in core-seconds. A collective was measured among all of its ranks, which
                    # took turns where the cores are fewer.
                    width = threads if lane == "compute" else min(1.0, cores)
                    own = builder.add_link(f"rank {rank} {lane}", width * _UNITS_PER_S)
                    links[lane], units[lane] = (own, machine), width * _UNITS_PER_S
            self.lanes.append(Lanes(resources, links, units))

    def add_work(
        self, rank: int, lane: str, seconds: NDArray[np.float64], label: Ints | int, category: Ints | int
    ) -> Ints:
        """Tasks on one lane of a rank; on shared cores they are flows of core-seconds."""
        communicates = np.isin(category, [self.builder.category(name) for name in _COMMUNICATION])
        self.work_s[rank] += float(np.where(communicates, 0.0, seconds).sum())
        lanes = self.lanes[rank]
        resources = np.full(len(seconds), lanes.resources[lane])
        if lane not in lanes.links:
            return self.builder.add_tasks(seconds, resources=resources, label=label, category=category)
        links = np.tile(np.array(lanes.links[lane]), (len(seconds), 1))
        # A task that moves nothing may name no links.
        links[seconds <= 0] = -1
        return self.builder.add_tasks(
            np.zeros(len(seconds)),
            num_bytes=seconds * lanes.units_per_s[lane],
            resources=resources,
            links=links,
            label=label,
            category=category,
        )

    def add_one(self, rank: int, lane: str, seconds: float, label: str, category: str) -> int:
        """One task."""
        builder = self.builder
        ids = self.add_work(rank, lane, np.array([seconds]), builder.label(label), builder.category(category))
        return int(ids[0])

    def then(self, rank: int, seconds: float, label: str, category: str) -> int:
        """One more task at the end of a rank's compute stream."""
        task = self.add_one(rank, "compute", seconds, label, category)
        self.builder.add_dependencies(self.tail[rank], task)
        self.tail[rank] = task
        return task

    def wait(self, rank: int, subject: str) -> None:
        """Let a rank's compute stream wait for what was started, and let go of what was held until then."""
        tasks = self.under_way[rank].get(subject, UnderWay()).tasks
        if tasks:
            self.builder.add_dependencies(tasks, self.then(rank, 0.0, f"wait for {subject}", "other"))
            self.free(rank, subject)

    def free(self, rank: int, subject: str) -> None:
        """Let go of what is held for a subject, at the end of the last task."""
        held_bytes = self.under_way[rank].pop(subject, UnderWay()).held_bytes
        if held_bytes:
            self.memory.add(self.tail[rank], rank, Effect(0, "communication", 0, -held_bytes))

    def add_actions(
        self, rank: int, actions: tuple[Action, ...], templates: list[Template], before: Template | None
    ) -> list[Ints]:
        """The tasks of a rank's actions, one action after the other, and what comes before the first.

        Returns
        -------
        The ids of the tasks of each action.
        """
        builder = self.builder
        first = 0 if before is None else 1
        templates = templates if before is None else [before, *templates]
        sizes = np.array([len(t.seconds) for t in templates], np.int64)
        starts = np.concatenate((np.zeros(1, np.int64), np.cumsum(sizes)))
        columns = {id(t): _Columns.of(t, builder, self.lane_names) for t in templates}
        rows = [columns[id(t)] for t in templates]
        seconds = np.concatenate([r.seconds for r in rows])
        waits_for = np.concatenate([r.waits_for for r in rows])
        offset = np.repeat(starts[:-1], sizes)
        category = np.concatenate([r.category for r in rows])
        label = np.concatenate([r.label for r in rows])
        compute = waits_for < 0
        ids = np.zeros(len(seconds), np.int64)
        ids[compute] = self.add_work(rank, "compute", seconds[compute], label[compute], category[compute])
        builder.chain(ids[compute])
        if not compute.all():
            lane = np.concatenate([r.lane for r in rows])
            for i in np.unique(lane[~compute]):
                own = ~compute & (lane == i)
                ids[own] = self.add_work(rank, self.lane_names[i], seconds[own], label[own], category[own])
            builder.add_dependencies(ids[(waits_for + offset)[~compute]], ids[~compute])
            self._add_started(rank, templates, starts, ids)
            waits = [np.array(t.dependencies, np.int64).reshape(-1, 2) for t in templates]
            pairs = np.concatenate([w + start for w, start in zip(waits, starts, strict=False)])
            builder.add_dependencies(ids[pairs[:, 0]], ids[pairs[:, 1]])
        self.start(rank, UPDATE, [], sum(t.kept_until_update for t in templates))
        for action, start, template in zip(actions, starts[first:], templates[first:], strict=False):
            ends = int(ids[start]), int(ids[start + template.last_compute])
            self.ends[rank].append(ends)
            if action.kind != "U":
                self.first[action], self.last[action] = ends
        self.tail[rank] = int(ids[compute][-1])
        self._record(rank, templates, starts, ids)
        return np.split(ids, starts[1:-1])[first:]

    def start(self, rank: int, subject: str, tasks: list[int], held_bytes: int = 0) -> None:
        """Note tasks that will be waited for, and the bytes that are let go then."""
        known = self.under_way[rank].setdefault(subject, UnderWay())
        known.tasks += tasks
        known.held_bytes += held_bytes

    def _add_started(self, rank: int, templates: list[Template], starts: Ints, ids: Ints) -> None:
        """Messages that actions start. Where few may be in flight, one more waits for the oldest."""
        queues: dict[tuple[str, int], list[tuple[int, int, int]]] = {}
        for begin, template in zip(starts, templates, strict=False):
            for s in template.started:
                row = (begin + s.before, begin + s.task, s.held_bytes)
                queues.setdefault((s.subject, s.most_in_flight), []).append(row)
        for (subject, most), rows in queues.items():
            before, tasks, held = np.array(rows, np.int64).T
            before, tasks = ids[before], ids[tasks]
            left = most or len(rows)
            self.builder.add_dependencies(tasks[:-left], before[left:])
            for size in np.unique(held[held > 0]):
                self.memory.add(before[held == size], rank, Effect(0, "communication", 0, int(size)))
                self.memory.add(
                    before[left:][held[:-left] == size], rank, Effect(0, "communication", -int(size), 0)
                )
            self.start(rank, subject, tasks[-left:].tolist(), int(held[-left:].sum()))

    def _record(self, rank: int, templates: list[Template], starts: Ints, ids: Ints) -> None:
        """Memory effects and sent bytes of a rank's actions, template by template."""
        where: dict[int, list[int]] = {}
        for i, template in enumerate(templates):
            where.setdefault(id(template), []).append(i)
        by_id = {id(t): t for t in templates}
        for key, places in where.items():
            begin = starts[np.array(places)]
            for effect in by_id[key].effects:
                self.memory.add(ids[begin + effect.task], rank, effect)
            columns = (by_id[key].category, by_id[key].num_bytes, by_id[key].num_ranks)
            for category, num_bytes, num_ranks in zip(*columns, strict=True):
                if num_bytes:
                    self.sent.append((rank, category, num_bytes * len(places), num_ranks))

    def add_transfers(self, prices: Prices, memory: Mapping[int, StageMemory]) -> None:
        """Sends between ranks, the order they impose between actions, and what is held for them."""
        schedule = self.plan.schedule
        held_by: dict[tuple[int, Kind, int, int, int], Ints] = {}
        for index, transfer in enumerate(self.lowered.transfers):
            of_pair: dict[tuple[int, int], list[int]] = {}
            for microbatch, pair in enumerate(rank_pairs(schedule, transfer)):
                of_pair.setdefault(pair, []).append(microbatch)
            for (source, target), microbatches in of_pair.items():
                made = np.array([self.last[Action(transfer.after, transfer.source, m)] for m in microbatches])
                key = (transfer.source, transfer.after, transfer.target, source, target)
                if key not in held_by:
                    held = memory[transfer.source].actions[transfer.after].sent.get(transfer.target, 0)
                    what = "activations" if source == target else "communication"
                    self.memory.add(made, source, Effect(0, what, 0, held))
                if source == target:
                    held_by[key] = made[:0]
                    if transfer.value in memory[transfer.target].borrowed:
                        self._outlive(transfer, source, memory)
                else:
                    seconds = prices.send_s(source, target, transfer_bytes(transfer))
                    held_by[key] = self._send(transfer, source, target, seconds, made)
                    self._receive(index, transfer, target, microbatches, held_by[key])
        for (stage, kind, target_stage, source, _), tasks in held_by.items():
            held = memory[stage].actions[kind].sent.get(target_stage, 0)
            self.memory.add(tasks, source, Effect(0, "communication", 0, -held))

    def _send(self, transfer: Transfer, source: int, target: int, seconds: float, made: Ints) -> Ints:
        lane = "up" if target > source else "down"
        label, category = self.builder.label(f"send {transfer.value}"), self.builder.category("send")
        tasks = self.add_work(source, lane, np.full(len(made), seconds), label, category)
        self.builder.add_dependencies(made, tasks)
        self.start(source, "sends", tasks.tolist())
        self.sent.append((source, "send", transfer_bytes(transfer) * len(made), 2))
        return tasks

    def _receive(
        self, index: int, transfer: Transfer, target: int, microbatches: list[int], tasks: Ints
    ) -> None:
        """The receiver posts its buffer some action ahead, and nothing moves before that."""
        needed = [self.first[Action(transfer.before, transfer.target, m)] for m in microbatches]
        self.builder.add_dependencies(tasks, needed)
        places = [self.posted[Delivery(index, m)] for m in microbatches]
        late = [(self.ends[target][i - 1][1], t) for i, t in zip(places, tasks, strict=True) if i >= 1]
        if late:
            self.builder.add_dependencies([a for a, _ in late], [t for _, t in late])
        posted = np.array([self.ends[target][i][0] for i in places])
        self.memory.add(posted, target, Effect(0, "communication", transfer_bytes(transfer), 0))

    def _outlive(self, transfer: Transfer, rank: int, memory: Mapping[int, StageMemory]) -> None:
        """A value that a stage borrows from another one of its rank, and holds longer, counts for that time."""
        until = {s: memory[s].released.get(transfer.value) for s in (transfer.source, transfer.target)}
        owner, borrower = until[transfer.source], until[transfer.target]
        size = memory[transfer.target].borrowed[transfer.value]
        if owner is None or borrower is None:
            return
        for microbatch in range(self.plan.num_microbatches):
            first = Action(owner, transfer.source, microbatch)
            last = Action(borrower, transfer.target, microbatch)
            if self.position[first] < self.position[last]:
                self.memory.add(self.first[first], rank, Effect(0, "activations", size, 0))
                self.memory.add(self.last[last], rank, Effect(0, "activations", 0, -size))


@dataclass(frozen=True)
class _Columns:
    seconds: NDArray[np.float64]
    waits_for: Ints
    lane: Ints
    category: Ints
    label: Ints

    @classmethod
    def of(cls, template: Template, builder: TaskGraphBuilder, lanes: Sequence[str]) -> _Columns:
        return cls(
            np.array(template.seconds),
            np.array(template.waits_for, np.int64),
            np.array([lanes.index(name) for name in template.lane], np.int64),
            np.array([builder.category(c) for c in template.category], np.int64),
            np.array([builder.label(name) for name in template.label], np.int64),
        )
