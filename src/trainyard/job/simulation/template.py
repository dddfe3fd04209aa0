"""The tasks of one action of a stage: the same for every microbatch, so they are made once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, get_args

from torch import fx

from trainyard.cost.memory import GraphMemory
from trainyard.cost.ops import is_free
from trainyard.hardware.devices import DeviceSpec
from trainyard.job.lower.segment import Segment
from trainyard.job.lower.signatures import Message, RankContext, Signature, Until, has_signature, signature
from trainyard.job.plan import Plan
from trainyard.job.simulation.memory import Effect
from trainyard.job.simulation.prices import Prices, Seconds
from trainyard.program import spmd
from trainyard.program.addresses import address


def lanes_of(plan: Plan) -> tuple[str, ...]:
    """Return the lanes of a rank that run side by side: ops, messages in each group, sends to other stages."""
    axes = sorted({axis for mesh in plan.meshes for axis, _ in mesh.nontrivial})
    return ("compute", "communication", *(f"{axis} communication" for axis in axes), "up", "down")


def _lane(message: Message) -> str:
    group = message.group
    return f"{group.axes[0]} communication" if group.axes and not group.of_buckets else "communication"


class Started(NamedTuple):
    """A message that runs beside the computation.

    Attributes
    ----------
    subject : by which it is waited for.
    before, task : the task after which it leaves, and its own.
    held_bytes : from the first of them until it is waited for.
    most_in_flight : before one more leaves, the oldest is waited for; 0 for any number.
    """

    subject: str
    before: int
    task: int
    held_bytes: int
    most_in_flight: int


@dataclass
class Template:
    """Tasks in the order in which a rank runs them; the lists have one entry per task.

    Attributes
    ----------
    seconds, category, label : of each task, which is named by the addresses of its ops; ``moving_s`` of the seconds in
        which it fills links, which are ``between_nodes`` or inside of one.
    num_bytes : sent by it, as collectives count them, in a group of ``num_ranks``.
    waits_for : task (of the template) after which an asynchronous task may start; -1 for the tasks of the
        compute stream, which run one after the other.
    lane : of `lanes_of` the plan.
    started : messages that a later action or the end of the step waits for, in order.
    dependencies : pairs of a message and the task of the compute stream that waits for it.
    kept_until_update : bytes that are let go when parameters are updated.
    joint : messages of several pipeline ranks, with the task before: each begins when the last of them is ready.
    waits : tasks that wait for what earlier actions started, with its subject, and let go of what was held for it.
    """

    seconds: list[float] = field(default_factory=list)
    moving_s: list[float] = field(default_factory=list)
    between_nodes: list[bool] = field(default_factory=list)
    category: list[str] = field(default_factory=list)
    label: list[str] = field(default_factory=list)
    num_bytes: list[int] = field(default_factory=list)
    num_ranks: list[int] = field(default_factory=list)
    waits_for: list[int] = field(default_factory=list)
    lane: list[str] = field(default_factory=list)
    effects: list[Effect] = field(default_factory=list)
    started: list[Started] = field(default_factory=list)
    dependencies: list[tuple[int, int]] = field(default_factory=list)
    kept_until_update: int = 0
    joint: list[tuple[Message, int, int]] = field(default_factory=list)
    waits: list[tuple[int, str]] = field(default_factory=list)

    def add(
        self,
        seconds: Seconds,
        category: str,
        label: str,
        num_bytes: int = 0,
        num_ranks: int = 1,
        waits_for: int = -1,
        lane: str = "compute",
    ) -> int:
        """Append a task; return its index."""
        self.seconds.append(seconds.whole)
        self.moving_s.append(seconds.moving)
        self.between_nodes.append(seconds.is_between_nodes)
        self.category.append(category)
        self.label.append(label)
        self.num_bytes.append(num_bytes)
        self.num_ranks.append(num_ranks)
        self.waits_for.append(waits_for)
        self.lane.append(lane)
        return len(self.seconds) - 1

    def start(self, does: Signature, seconds: Seconds, before: int, lane: str, **sent: Any) -> int:
        """Append a message that leaves after a task and runs beside those that follow; return its task."""
        assert does.message is not None
        task = self.add(seconds, does.message.kind, waits_for=before, lane=lane, **sent)
        held = {until: sum(h.num_bytes for h in does.held if h.until == until) for until in get_args(Until)}
        if not does.is_waited_here:
            self.started.append(Started(does.starts, before, task, held["wait"], does.most_in_flight))
        at_once = held["message"] + held["update"] + (held["wait"] if does.is_waited_here else 0)
        self.kept_until_update += held["update"]
        self.effects += [
            Effect(before, "communication", 0, at_once),
            Effect(task, "communication", 0, -held["message"]),
        ]
        return task

    @property
    def last_compute(self) -> int:
        """The last task of the compute stream."""
        return max(i for i, after in enumerate(self.waits_for) if after < 0)


@dataclass(frozen=True)
class TemplateInput:
    """The input of a template.

    Attributes
    ----------
    op_s : seconds of each node of the segment that is no communication.
    memory : of the segment's graph.
    """

    segment: Segment
    pipeline: int
    context: RankContext
    op_s: Mapping[fx.Node, float]
    memory: GraphMemory


def op_seconds_of(segment: Segment, devices: Iterable[DeviceSpec], prices: Prices) -> dict[fx.Node, float]:
    """Seconds of the ops of a segment on the slowest of some devices."""
    devices = tuple(devices)
    found = {}
    for node in segment.graph.nodes:
        if node.target not in spmd.UNBOUND and not is_free(node):
            found[node] = max(prices.op_seconds(node, device) for device in devices)
    return found


def make_template(work: TemplateInput, prices: Prices, is_first: bool, is_last: bool) -> Template:
    """Tasks of an action on the first, a middle or the last microbatch of its stage."""
    return _Writer(work, prices, is_first, is_last).run()


class _Writer:
    """Follows the ops of an action, and closes a task wherever a message leaves or is waited for."""

    def __init__(self, work: TemplateInput, prices: Prices, is_first: bool, is_last: bool) -> None:
        self.work, self.prices = work, prices
        self.context = replace(work.context, is_first=is_first, is_last=is_last)
        self.template = Template()
        self.chunk: dict[str, float] = {}
        self.chunk_start = 0
        self.level = work.memory.before_bytes
        self.chunk_ops: list[fx.Node] = []
        self.last_compute = -1
        # Messages of this action that are on their way, and those that the next task waits for: task and held bytes.
        self.under_way: dict[str, tuple[int, int]] = {}
        self.waited_for: list[tuple[int, int]] = []

    def run(self) -> Template:
        nodes = list(self.work.segment.graph.nodes)
        for i, node in enumerate(nodes):
            if has_signature(node):
                self._signed(i, node, signature(node, self.context))
            elif node in self.work.op_s:
                self._compute(node, self.work.op_s[node])
        self._flush(len(nodes))
        if self.waited_for or self.last_compute < 0:
            self._add_compute(Seconds(0.0), self._category(None))
        return self.template

    def _add_compute(self, seconds: Seconds, category: str, **sent: Any) -> int:
        """A task of the compute stream, after all that was waited for."""
        task = self.template.add(seconds, category, sent.pop("label", ""), **sent)
        for message, held_bytes in self.waited_for:
            self.template.dependencies.append((message, task))
            self.template.effects.append(Effect(task, "communication", -held_bytes, 0))
        self.waited_for.clear()
        self.last_compute = task
        return task

    def _category(self, node: fx.Node | None) -> str:
        if node is not None and node.meta.get("recomputed"):
            return "recompute"
        kind = self.work.segment.kind
        return {"F": "forward", "W": "weight_gradient"}.get(kind, "backward")

    def _compute(self, node: fx.Node, seconds: float) -> None:
        category = self._category(node)
        self.chunk_ops.append(node)
        self.chunk[category] = self.chunk.get(category, 0.0) + seconds

    def _flush(self, end: int) -> None:
        """Close the tasks of the nodes up to ``end``; what they hold at most, they hold together."""
        if not self.chunk:
            return
        ends = dict.fromkeys(map(address, (self.chunk_ops[0], self.chunk_ops[-1])))
        label = " .. ".join(ends)
        tasks = [self._add_compute(Seconds(each_s), name, label=label) for name, each_s in self.chunk.items()]
        self.chunk_ops = []
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

    def _signed(self, index: int, node: fx.Node, does: Signature) -> None:
        """An op that does more than compute: what it waits for, its passes over memory, then its message."""
        if does.waits in self.under_way:
            self._flush(index)
            self.waited_for.append(self.under_way.pop(does.waits))
        if does.most_in_flight:
            # What was computed before does not wait for an earlier message; the passes do.
            self._flush(index)
        for what, num_elements, element_bytes in does.passes:
            seconds = self.prices.buffer_op_s(what, self.work.pipeline, num_elements, element_bytes)
            self._compute(node, seconds)
        if does.message is None:
            return
        if does.starts and not self._is_waited_for_at_once(node):
            self._start(index, node, does, does.message)
        else:
            self._block(index, node, does.message)

    def _is_waited_for_at_once(self, node: fx.Node) -> bool:
        """Return whether nothing is computed between the start of a message and the wait for it."""
        following = node.next
        while following not in self.work.op_s and not has_signature(following) and following.op != "output":
            following = following.next
        return following.target is spmd.wait and following.args[0] is node

    def _block(self, index: int, node: fx.Node, message: Message) -> None:
        """A message on the critical path."""
        self._flush(index)
        sent = self._sent(node, message)
        task = self._add_compute(self._seconds(message), message.kind, **sent)
        self._use_memory(task, task, self.chunk_start, index + 1)
        self.chunk_start = index + 1

    def _start(self, index: int, node: fx.Node, does: Signature, message: Message) -> None:
        """A message beside what is computed after it."""
        self._flush(index + 1)
        if self.last_compute < 0:
            self._add_compute(Seconds(0.0), self._category(None))
        sent = self._sent(node, message)
        seconds = self._seconds(message)
        task = self.template.start(does, seconds, self.last_compute, _lane(message), **sent)
        if does.is_waited_here:
            held_bytes = sum(h.num_bytes for h in does.held if h.until == "wait")
            self.under_way[does.starts] = task, held_bytes

    def _seconds(self, message: Message) -> Seconds:
        return self.prices.message_s(message, self.work.pipeline)

    def _sent(self, node: fx.Node, message: Message) -> dict[str, Any]:
        size = self.prices.group_size(message, self.work.pipeline)
        origin = address(node) if "address" in node.meta else f"{message.about}:{message.kind}"
        return {"label": origin, "num_bytes": message.num_bytes, "num_ranks": size}
