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
from trainyard.job.lower.lower import Lowered
from trainyard.job.lower.signatures import UPDATE
from trainyard.job.schedule import Action
from trainyard.job.simulation.memory import MEMORY_KINDS, Effect
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
    under_way : what each rank has started for a later action to wait for, by its subject.
    waits : tasks that wait for it: pipeline rank, task, subject.
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
        self.under_way: list[dict[str, UnderWay]] = [{} for _ in range(self.plan.pipeline)]
        self.waits: list[tuple[int, int, str]] = []
        self.sent: list[tuple[int, str, int, int]] = []
        self.base: list[dict[str, int]] = []
        self.lanes: list[Lanes] = []
        # What messages of a pipeline rank share: its links inside of nodes, and those between nodes, out and in.
        self.links: list[tuple[int, int, int]] = []
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
        # A representative has the share of the cores that its peers leave it; on unlike meshes, as if all had as many.
        cores = (num_cores or 0) * self.plan.pipeline / self.plan.num_ranks
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
            names = (f"rank {rank} {where}" for where in ("inside nodes", "out of nodes", "into nodes"))
            within, out, into = (builder.add_link(name, _UNITS_PER_S) for name in names)
            self.links.append((within, out, into))

    def add_work(
        self,
        rank: int,
        lane: str,
        seconds: NDArray[np.float64],
        label: Ints | int,
        category: Ints | int,
        moving_s: NDArray[np.float64] | float = 0.0,
        links: Ints | None = None,
        part_of: Ints | int = 0,
    ) -> Ints:
        """Tasks on one lane of a rank; on shared cores they are flows of core-seconds.

        Parameters
        ----------
        moving_s : of the seconds those in which a task fills its ``links``, two for each task, -1 for none.
        part_of : labels of the actions.
        """
        communicates = np.isin(category, [self.builder.category(name) for name in _COMMUNICATION])
        self.work_s[rank] += float(np.where(communicates, 0.0, seconds).sum())
        lanes = self.lanes[rank]
        resources = np.full(len(seconds), lanes.resources[lane])
        if lane not in lanes.links:
            moving = {} if links is None else {"num_bytes": moving_s * _UNITS_PER_S, "links": links}
            return self.builder.add_tasks(
                seconds - moving_s,
                resources=resources,
                label=label,
                part_of=part_of,
                category=category,
                **moving,
            )
        links = np.tile(np.array(lanes.links[lane]), (len(seconds), 1))
        # A task that moves nothing may name no links.
        links[seconds <= 0] = -1
        return self.builder.add_tasks(
            np.zeros(len(seconds)),
            num_bytes=seconds * lanes.units_per_s[lane],
            resources=resources,
            links=links,
            label=label,
            part_of=part_of,
            category=category,
        )

    def crossed(self, rank: int, moving_s: NDArray[np.float64], between_nodes: NDArray[np.bool_]) -> Ints:
        """The links that messages of a rank cross: shape (messages, 2), -1 for none."""
        within, out, into = self.links[rank]
        found = np.where(between_nodes[:, None], (out, into), (within, -1))
        found[moving_s <= 0] = -1
        return found

    def add_actions(
        self,
        rank: int,
        actions: tuple[Action, ...],
        templates: list[Template],
        before: Template | None,
        after: Template,
    ) -> list[Ints]:
        """The tasks of a rank's actions, one action after the other, what comes before the first and after the last.

        Returns
        -------
        The ids of the tasks of each action, and of what comes after.
        """
        builder = self.builder
        first = 0 if before is None else 1
        templates = [*([] if before is None else [before]), *templates, after]
        sizes = np.array([len(t.seconds) for t in templates], np.int64)
        starts = np.concatenate((np.zeros(1, np.int64), np.cumsum(sizes)))
        of_template = {id(t): _Columns.of(t, builder, self.lane_names) for t in templates}
        rows = [of_template[id(t)] for t in templates]
        seconds = np.concatenate([r.seconds for r in rows])
        waits_for = np.concatenate([r.waits_for for r in rows])
        offset = np.repeat(starts[:-1], sizes)
        category = np.concatenate([r.category for r in rows])
        label = np.concatenate([r.label for r in rows])
        names = [""] * first + [str(action) for action in actions] + ["update"]
        part_of = np.repeat(np.array([builder.label(name) for name in names], np.int64), sizes)
        moving = np.concatenate([r.moving_s for r in rows])
        links = self.crossed(rank, moving, np.concatenate([r.between_nodes for r in rows]))
        compute = waits_for < 0
        ids = np.zeros(len(seconds), np.int64)

        def add(lane: str, own: NDArray[np.bool_]) -> None:
            ids[own] = self.add_work(
                rank, lane, seconds[own], label[own], category[own], moving[own], links[own], part_of[own]
            )

        add("compute", compute)
        builder.chain(ids[compute])
        if not compute.all():
            lane = np.concatenate([r.lane for r in rows])
            for i in np.unique(lane[~compute]):
                add(self.lane_names[i], ~compute & (lane == i))
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
        for begin, template in zip(starts, templates, strict=False):
            self.waits += [(rank, int(ids[begin + task]), subject) for task, subject in template.waits]
        self._record(rank, templates, starts, ids)
        return np.split(ids, starts[1:-1])[first:]

    def wait(self) -> None:
        """Let tasks wait for what was started, and let go of what is held until then."""
        for rank, task, subject in self.waits:
            found = self.under_way[rank].pop(subject, UnderWay())
            if found.tasks:
                self.builder.add_dependencies(found.tasks, task)
            if found.held_bytes:
                self.memory.add(task, rank, Effect(0, "communication", 0, -found.held_bytes))

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


@dataclass(frozen=True)
class _Columns:
    seconds: NDArray[np.float64]
    moving_s: NDArray[np.float64]
    between_nodes: NDArray[np.bool_]
    waits_for: Ints
    lane: Ints
    category: Ints
    label: Ints

    @classmethod
    def of(cls, template: Template, builder: TaskGraphBuilder, lanes: Sequence[str]) -> _Columns:
        return cls(
            np.array(template.seconds),
            np.array(template.moving_s),
            np.array(template.between_nodes, np.bool_),
            np.array(template.waits_for, np.int64),
            np.array([lanes.index(name) for name in template.lane], np.int64),
            np.array([builder.category(c) for c in template.category], np.int64),
            np.array([builder.label(name) for name in template.label], np.int64),
        )
