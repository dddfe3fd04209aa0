"""The tasks of one action of a stage: the same for every microbatch, so they are made once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from torch import fx

from trainyard.cost.memory import GraphMemory
from trainyard.cost.ops import Pass, is_free
from trainyard.job.lower.buckets import Bucket, is_sharded
from trainyard.job.lower.segment import Segment
from trainyard.job.plan import DATA
from trainyard.job.simulation.memory import Effect
from trainyard.job.simulation.prices import Prices
from trainyard.program import spmd
from trainyard.program.program import size_bytes, tensor_of


class Reduction(NamedTuple):
    """Of a microbatch's gradients that are sharded.

    Attributes
    ----------
    copied, reduced : the tasks that fill its buffer and that empty it.
    held_bytes : of the buffer and of the part that comes out.
    """

    copied: int
    reduced: int
    held_bytes: int


@dataclass
class Template:
    """Tasks in the order in which a rank runs them; the lists have one entry per task.

    Attributes
    ----------
    seconds, category, label : of each task.
    num_bytes : sent by it, as collectives count them, in a group of ``num_ranks``.
    waits_for : task (of the template) after which an asynchronous task may start; -1 for the tasks of the
        compute stream, which run one after the other.
    reductions : in order.
    """

    seconds: list[float] = field(default_factory=list)
    category: list[str] = field(default_factory=list)
    label: list[str] = field(default_factory=list)
    num_bytes: list[int] = field(default_factory=list)
    num_ranks: list[int] = field(default_factory=list)
    waits_for: list[int] = field(default_factory=list)
    effects: list[Effect] = field(default_factory=list)
    reductions: list[Reduction] = field(default_factory=list)

    def add(
        self,
        seconds: float,
        category: str,
        label: str,
        num_bytes: int = 0,
        num_ranks: int = 1,
        waits_for: int = -1,
    ) -> int:
        """Append a task; return its index."""
        self.seconds.append(seconds)
        self.category.append(category)
        self.label.append(label)
        self.num_bytes.append(num_bytes)
        self.num_ranks.append(num_ranks)
        self.waits_for.append(waits_for)
        return len(self.seconds) - 1

    @property
    def last_compute(self) -> int:
        """The last task of the compute stream."""
        return max(i for i, after in enumerate(self.waits_for) if after < 0)


@dataclass(frozen=True)
class Work:
    """What a template is made of.

    Attributes
    ----------
    op_s : seconds of each node of the segment that is no communication.
    memory : of the segment's graph.
    """

    segment: Segment
    pipeline: int
    buckets: Mapping[str, Bucket]
    op_s: Mapping[fx.Node, float]
    memory: GraphMemory


def op_seconds_of(segment: Segment, pipeline: int, prices: Prices) -> dict[fx.Node, float]:
    """Seconds of the ops of a segment on the slowest device of a pipeline rank."""
    devices = prices.devices(pipeline)
    found = {}
    for node in segment.graph.nodes:
        if node.target not in _COMMUNICATION and not is_free(node):
            found[node] = max(prices.op_seconds(node, device) for device in devices)
    return found


def make_template(work: Work, prices: Prices, is_first: bool, is_last: bool) -> Template:
    """Tasks of an action on the first, a middle or the last microbatch of its stage."""
    return _Writer(work, prices, is_first, is_last).run()


_COMMUNICATION = spmd.COLLECTIVES | {spmd.accumulate_grads, spmd.gather_params}


class _Writer:
    def __init__(self, work: Work, prices: Prices, is_first: bool, is_last: bool) -> None:
        self.work, self.prices = work, prices
        self.is_first, self.is_last = is_first, is_last
        self.template = Template()
        self.chunk: dict[str, float] = {}
        self.chunk_start = 0
        self.level = work.memory.before_bytes
        self.name = f"stage {work.segment.stage} {work.segment.kind}"

    def run(self) -> Template:
        nodes = list(self.work.segment.graph.nodes)
        for i, node in enumerate(nodes):
            if node.target in spmd.COLLECTIVES:
                self._collective(i, node)
            elif node.target is spmd.gather_params:
                self._gather(i, node)
            elif node.target is spmd.accumulate_grads:
                self._accumulate(i, node)
            elif node in self.work.op_s:
                self._compute(self._category(node), self.work.op_s[node])
        self._flush(len(nodes))
        if not self.template.seconds:
            self.template.add(0.0, self._category(None), self.name)
        return self.template

    def _category(self, node: fx.Node | None) -> str:
        if node is not None and node.meta.get("recomputed"):
            return "recompute"
        kind = self.work.segment.kind
        return {"F": "forward", "W": "weight_gradient"}.get(kind, "backward")

    def _compute(self, category: str, seconds: float) -> None:
        self.chunk[category] = self.chunk.get(category, 0.0) + seconds

    def _pass(self, what: Pass, num_elements: int) -> None:
        self._compute(self._category(None), self.prices.pass_s(what, self.work.pipeline, num_elements))

    def _flush(self, end: int) -> None:
        """Close the tasks of the nodes up to ``end``; what they hold at most, they hold together."""
        if not self.chunk:
            return
        tasks = [self.template.add(seconds, name, self.name) for name, seconds in self.chunk.items()]
        self._use_memory(tasks[0], tasks[-1], self.chunk_start, end)
        self.chunk = {}
        self.chunk_start = end

    def _use_memory(self, first: int, last: int, start: int, end: int) -> None:
        memory = self.work.memory
        if end <= start:
            return
        peak = max(self.level, int(memory.during_bytes[start:end].max()))
        after = int(memory.after_bytes[end - 1])
        self.template.effects.append(Effect(first, "temporaries", peak - self.level, 0))
        self.template.effects.append(Effect(last, "temporaries", 0, after - peak))
        self.level = after

    def _blocking(self, index: int, kind: str, axis: str, num_bytes: int) -> None:
        self._flush(index)
        seconds = self.prices.collective_s(kind, axis, self.work.pipeline, num_bytes)
        task = self.template.add(seconds, kind, f"{self.name} {kind}", num_bytes, self.prices.size(axis))
        self._use_memory(task, task, self.chunk_start, index + 1)
        self.chunk_start = index + 1

    def _asynchronous(self, index: int, kind: str, bucket: Bucket, num_bytes: int) -> tuple[int, int]:
        """The task after which it may start, and its own."""
        self._flush(index + 1)
        before = self.template.last_compute
        seconds = self.prices.collective_s(kind, DATA, self.work.pipeline, num_bytes)
        size = self.prices.size(DATA)
        task = self.template.add(seconds, kind, f"{bucket.name} {kind}", num_bytes, size, waits_for=before)
        staged = self.prices.staged_bytes(kind, num_bytes)
        self.template.effects += [
            Effect(before, "communication", 0, staged),
            Effect(task, "communication", 0, -staged),
        ]
        return before, task

    def _collective(self, index: int, node: fx.Node) -> None:
        """A collective on the critical path, and the copies that the communicator makes around it."""
        axis = str(node.args[1])
        kind, num_bytes, copied = _sent_and_copied(node, self.prices.size(axis))
        if copied:
            width = tensor_of(node).element_size()
            seconds = self.prices.pass_s("copy", self.work.pipeline, copied // width, width)
            self._compute(self._category(node), seconds)
        self._blocking(index, kind, axis, num_bytes)

    def _gather(self, index: int, node: fx.Node) -> None:
        bucket = self.work.buckets[str(node.args[0])]
        width = bucket.element_bytes
        if bucket.converted_bytes:
            copied_s = self.prices.pass_s("copy", self.work.pipeline, bucket.share, width)
            self._compute(self._category(None), copied_s)
        self._blocking(index, "all_gather", DATA, bucket.num_elements * width)

    def _accumulate(self, index: int, node: fx.Node) -> None:
        plan = self.prices.plan
        bucket = self.work.buckets[str(node.args[0])]
        num_bytes = bucket.num_elements * 4
        if is_sharded(plan, bucket):
            # What was computed before does not wait for an earlier reduction; the copy does, and adds its part.
            self._flush(index)
            self._pass("accumulate", bucket.num_elements // bucket.num_shards)
            self._pass("clone", sum(bucket.sizes))
            copied, reduced = self._asynchronous(index, "reduce_scatter", bucket, num_bytes)
            held = num_bytes + num_bytes // bucket.num_shards
            self.template.reductions.append(Reduction(copied, reduced, held))
            return
        self._pass("copy" if self.is_first else "accumulate", sum(bucket.sizes))
        if self.is_last and bucket.reduced and len(bucket.stages) == 1:
            kind = "all_reduce" if bucket.num_shards == 1 else "reduce_scatter"
            before, _ = self._asynchronous(index, kind, bucket, num_bytes)
            if bucket.num_shards > 1:
                self.template.effects.append(
                    Effect(before, "communication", 0, num_bytes // bucket.num_shards)
                )


def _sent_and_copied(node: fx.Node, num_ranks: int) -> tuple[str, int, int]:
    """The collective, its bytes as it counts them, and the bytes that the communicator copies beside it."""
    source = node.args[0]
    assert isinstance(source, fx.Node)
    given, made = size_bytes(tensor_of(source)), size_bytes(tensor_of(node))
    in_place = node.args[2:4] == (0, 1)
    if node.target is spmd.all_reduce:
        return "all_reduce", given, given
    if node.target is spmd.all_gather:
        return "all_gather", made, 0 if in_place else made
    if node.target is spmd.reduce_scatter:
        return "reduce_scatter", given, 0 if in_place else given
    if node.args[2] == node.args[4]:  # along one dimension it is a gather and a cut
        return "all_gather", given * num_ranks, given * num_ranks
    return "all_to_all", given, 2 * given
