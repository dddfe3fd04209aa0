"""Effects of the ops of lowered graphs beside their values: messages, waits, passes over memory, memory that is held.

One table for all who ask: the simulator prices it, the account of memory adds it up, and the checks follow it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from torch import fx

from trainyard.cost.ops import BufferOp
from trainyard.job.lower import ops
from trainyard.job.lower.buckets import MAX_REDUCTIONS_IN_FLIGHT, Bucket
from trainyard.job.lower.lower import Lowered
from trainyard.job.optimizer import OptimizerConfig
from trainyard.job.plan import Axes, Mesh, Plan
from trainyard.program import spmd
from trainyard.program.program import size_bytes, tensor_of


class Group(NamedTuple):
    """The ranks that take part in a message.

    Attributes
    ----------
    axes : of one pipeline rank, the ranks that differ on these axes only.
    stages : of the pipeline ranks with these stages, the ranks that are at the same place of their meshes.
    of_buckets : whether it is for buckets alone. What ranks send in one group goes in one order: a tensor that the next
        op needs would wait behind gradients that nobody needs yet.
    """

    axes: Axes = ()
    stages: tuple[int, ...] = ()
    of_buckets: bool = False

    def members(self, plan: Plan, pipeline: int) -> list[tuple[int, ...]]:
        """The groups of a pipeline rank, which send at the same time; one of all ranks where nothing is named."""
        if self.axes:
            return plan.groups(self.axes, pipeline)
        if self.stages:
            return plan.groups_across(self.pipelines(plan))
        return [tuple(range(plan.num_ranks))]

    def pipelines(self, plan: Plan) -> tuple[int, ...]:
        """The pipeline ranks that send to each other; none where each sends for itself."""
        if self.axes:
            return ()
        return plan.schedule.ranks_with(self.stages) or tuple(range(plan.pipeline))


EVERYONE = Group()
UPDATE = "update"

Until = Literal["message", "wait", "update", "backward"]
"""When memory is let go: with the end of the message, when it is waited for, when parameters are updated, or after the
last backward pass that uses it."""


Library = Literal["gloo", "nccl"]


class BufferPass(NamedTuple):
    """One pass over a flat buffer, on the compute stream."""

    what: BufferOp
    num_elements: int
    element_bytes: int = 4


@dataclass(frozen=True)
class Message:
    """A collective.

    Attributes
    ----------
    kind : as `collective_cost` names it.
    group : who takes part.
    num_bytes : as `collective_cost` counts them.
    about : what it moves; it tells messages of one group apart.
    """

    kind: str
    group: Group
    num_bytes: int
    about: str


class Held(NamedTuple):
    """Memory that an op takes and that outlives it."""

    num_bytes: int
    until: Until


@dataclass(frozen=True)
class Signature:
    """The effects of one op.

    Attributes
    ----------
    passes : over memory, before the message leaves.
    message : that it sends, and waits for unless it ``starts`` something.
    starts, waits : what is on its way after it, and what it waits for.
    frees : what is let go after it.
    held : memory that outlives it.
    scratch_bytes : memory that it needs while it runs.
    result_bytes : of the one memory in which all its results lie; None where each has its own.
    is_waited_here : whether the same action waits for what it starts.
    most_in_flight : of what it starts. One more waits for the oldest. 0: any number.
    """

    passes: tuple[BufferPass, ...] = ()
    message: Message | None = None
    starts: str = ""
    waits: str = ""
    frees: str = ""
    held: tuple[Held, ...] = ()
    scratch_bytes: int = 0
    result_bytes: int | None = None
    is_waited_here: bool = False
    most_in_flight: int = 0

    @property
    def working_bytes(self) -> int:
        """Memory beside operands and results while the op runs."""
        return self.scratch_bytes + sum(held.num_bytes for held in self.held)


@dataclass(frozen=True)
class RankContext:
    """The pipeline rank that runs ops, for which their signatures hold.

    Attributes
    ----------
    mesh : of the pipeline rank.
    buckets : that it has, by name.
    library : that moves messages. Gloo copies what it reduces and scatters, and what it gathers.
    is_first, is_last : whether the microbatch is the first or the last for its stage and kind of action.
    """

    plan: Plan
    mesh: Mesh
    buckets: Mapping[str, Bucket]
    optimizer: OptimizerConfig
    library: Library
    is_first: bool = False
    is_last: bool = False

    def bucket(self, node: fx.Node) -> Bucket:
        """The bucket that an op names."""
        return self.buckets[str(node.args[0])]

    def staged(self, num_bytes: int) -> Held:
        """Bytes that the library copies aside for a gather or a reduce-scatter, until it has arrived."""
        return Held(num_bytes if self.library == "gloo" else 0, "message")


def rank_context(lowered: Lowered, rank: int, library: Library = "nccl") -> RankContext:
    """A pipeline rank of a plan."""
    plan = lowered.plan
    buckets = {b.name: b for s in lowered.stages_of(rank) for b in (*s.buckets, *s.frozen)}
    return RankContext(plan, plan.meshes[rank], buckets, lowered.optimizer, library)


NOTHING = Signature()


def signature(node: fx.Node, context: RankContext) -> Signature:
    """Return the signature of an op on a rank; an empty one for ops that only compute."""
    known = _SIGNATURES.get(node.target)
    return NOTHING if known is None else known(node, context)


def has_signature(node: fx.Node) -> bool:
    """Return whether an op is in the table."""
    return node.target in _SIGNATURES


# Collectives on tensors, along an axis.


def _given_and_made(node: fx.Node) -> tuple[int, int]:
    source = node.args[0]
    assert isinstance(source, fx.Node)
    return size_bytes(tensor_of(source)), size_bytes(tensor_of(node))


def _copies(node: fx.Node, num_bytes: int) -> tuple[BufferPass, ...]:
    width = tensor_of(node).element_size()
    return (BufferPass("copy", num_bytes // width, width),) if num_bytes else ()


def _start_all_reduce(node: fx.Node, context: RankContext) -> Signature:
    given, _ = _given_and_made(node)
    return _start_collective(node, "all_reduce", given, _copies(node, given))


def _start_all_gather(node: fx.Node, context: RankContext) -> Signature:
    _, made = _given_and_made(node)
    return _start_collective(node, "all_gather", made, held=[context.staged(made)])


def _start_reduce_scatter(node: fx.Node, context: RankContext) -> Signature:
    given, _ = _given_and_made(node)
    copied = 0 if spmd.is_in_place(node) else given
    held = [Held(copied, "wait"), context.staged(given)]
    return _start_collective(node, "reduce_scatter", given, _copies(node, copied), held)


def _start_all_to_all(node: fx.Node, context: RankContext) -> Signature:
    given, _ = _given_and_made(node)
    if spmd.reads_operand(node):
        whole = given * context.mesh.size(str(node.args[1]))
        gather = _start_collective(node, "all_gather", whole, held=[context.staged(whole)])
        return replace(gather, result_bytes=whole)
    return _start_collective(node, "all_to_all", given, _copies(node, given), [Held(given, "wait")])


def _start_collective(
    node: fx.Node, kind: str, num_bytes: int, copies: tuple[BufferPass, ...] = (), held: Sequence[Held] = ()
) -> Signature:
    message = Message(kind, Group((str(node.args[1]),)), num_bytes, node.name)
    taken = tuple(h for h in held if h.num_bytes)
    return Signature(copies, message, node.name, held=taken, is_waited_here=True)


def _wait(node: fx.Node, context: RankContext) -> Signature:
    """Return a wait, with the copy that puts the arrived message in order if need be."""
    start = node.all_input_nodes[0]
    _, made = _given_and_made(start)
    in_place = start.target is spmd.start_all_reduce or spmd.stays_where_it_arrives(node)
    return Signature(() if in_place else _copies(node, made), waits=start.name)


# Gradients and parameters of a bucket.


def _of_bucket(kind: str, bucket: Bucket, num_bytes: int) -> Message:
    return Message(kind, Group(bucket.summed_over, of_buckets=True), num_bytes, bucket.name)


def _gather_params(node: fx.Node, context: RankContext) -> Signature:
    bucket = context.bucket(node)
    whole, converted = bucket.num_elements * bucket.element_bytes, bucket.converted_bytes
    passes = (BufferPass("copy", bucket.share, bucket.element_bytes),) if converted else ()
    message = _of_bucket("all_gather", bucket, whole)
    scratch = converted + context.staged(whole).num_bytes
    return Signature(passes, message, scratch_bytes=scratch, result_bytes=whole)


def _accumulate_grads(node: fx.Node, context: RankContext) -> Signature:
    bucket = context.bucket(node)
    if bucket.gradients_shared:
        passes = (BufferPass("accumulate", bucket.share), BufferPass("clone", sum(bucket.sizes)))
        flat_and_part = 4 * (bucket.num_elements + bucket.share)
        held = (Held(flat_and_part, "wait"), context.staged(4 * bucket.num_elements))
        message = _of_bucket("reduce_scatter", bucket, 4 * bucket.num_elements)
        return Signature(passes, message, _PARTS, held=held, most_in_flight=MAX_REDUCTIONS_IN_FLIGHT)
    added = BufferPass("copy" if context.is_first else "accumulate", sum(bucket.sizes))
    # What is added is converted first, all of the bucket's; what is copied is converted on the way.
    converted = 4 * sum(bucket.sizes) if bucket.is_converted and not context.is_first else 0
    if not (context.is_last and bucket.reduced and bucket.is_of_one_action):
        return Signature((added,), scratch_bytes=converted)
    return replace(_start_reduction(node, context), passes=(added,), scratch_bytes=converted)


_PARTS = "parts of gradients"


def _start_reduction(node: fx.Node, context: RankContext) -> Signature:
    bucket = context.bucket(node)
    num_bytes = 4 * bucket.num_elements
    if bucket.num_shards == 1:
        message = _of_bucket("all_reduce", bucket, num_bytes)
        return Signature(message=message, starts=f"gradients of {bucket.name}")
    message = _of_bucket("reduce_scatter", bucket, num_bytes)
    parts = (Held(4 * bucket.share, "update"), context.staged(num_bytes))
    return Signature(message=message, starts=f"gradients of {bucket.name}", held=parts)


# The end of a step.


def _waits(subject: str) -> Callable[[fx.Node, RankContext], Signature]:
    return lambda node, context: Signature(waits=subject.format(*node.args))


def _between_buckets(what: BufferOp) -> Callable[[fx.Node, RankContext], Signature]:
    return lambda node, context: Signature((BufferPass(what, context.bucket(node).num_elements),))


def _start_losses(node: fx.Node, context: RankContext) -> Signature:
    return Signature(message=_to_everyone(context, 8 * len(_names(node)), "losses"), starts="losses")


def _sum_over_ranks(node: fx.Node, context: RankContext) -> Signature:
    return Signature(message=_to_everyone(context, 8, "gradient norm"))


def _to_everyone(context: RankContext, num_bytes: int, about: str) -> Message | None:
    return Message("all_reduce", EVERYONE, num_bytes, about) if context.plan.num_ranks > 1 else None


def _sum_over_stages(node: fx.Node, context: RankContext) -> Signature:
    bucket = context.bucket(node)
    num_bytes = 4 * bucket.num_elements
    return Signature(
        message=Message("all_reduce", Group(stages=bucket.stages), num_bytes, ", ".join(bucket.paths))
    )


def _squared_norm(node: fx.Node, context: RankContext) -> Signature:
    return Signature((BufferPass("norm", _num_elements(node, context)),))


def _update_parameters(node: fx.Node, context: RankContext) -> Signature:
    return Signature(_update_passes(node, context), frees=UPDATE)


def _keep_weights(node: fx.Node, context: RankContext) -> Signature:
    buckets = [context.buckets[str(name)] for name in _names(node)]
    copies = tuple(BufferPass("copy", b.num_elements, b.element_bytes) for b in buckets)
    num_bytes = sum(b.num_elements * b.element_bytes for b in buckets)
    return Signature(copies, held=(Held(num_bytes, "backward"),))


def _update_stage(node: fx.Node, context: RankContext) -> Signature:
    return Signature(_update_passes(node, context))


def _update_passes(node: fx.Node, context: RankContext) -> tuple[BufferPass, ...]:
    num_elements = _num_elements(node, context)
    return tuple(BufferPass(what, num_elements) for what in context.optimizer.passes)


def _convert_weights(node: fx.Node, context: RankContext) -> Signature:
    bucket = context.bucket(node)
    return Signature((BufferPass("copy", bucket.num_elements, bucket.element_bytes),))


def _start_weights(node: fx.Node, context: RankContext) -> Signature:
    bucket = context.bucket(node)
    copied = BufferPass("copy", bucket.share, bucket.element_bytes)
    whole = bucket.num_elements * bucket.element_bytes
    message = _of_bucket("all_gather", bucket, whole)
    held = (Held(bucket.share * bucket.element_bytes, "wait"), context.staged(whole))
    return Signature((copied,), message, f"weights of {bucket.name}", held=held)


def _names(node: fx.Node) -> Sequence[Any]:
    names = node.args[0]
    assert isinstance(names, tuple)
    return names


def _num_elements(node: fx.Node, context: RankContext) -> int:
    """Count the elements of the parts of all buckets that an op names."""
    return sum(context.buckets[str(name)].share for name in _names(node))


_SIGNATURES: dict[Any, Callable[[fx.Node, RankContext], Signature]] = {
    spmd.start_all_reduce: _start_all_reduce,
    spmd.start_all_gather: _start_all_gather,
    spmd.start_reduce_scatter: _start_reduce_scatter,
    spmd.start_all_to_all: _start_all_to_all,
    spmd.wait: _wait,
    spmd.gather_params: _gather_params,
    spmd.accumulate_grads: _accumulate_grads,
    ops.wait_sends: _waits("sends"),
    ops.start_losses: _start_losses,
    ops.wait_losses: _waits("losses"),
    ops.finish_accumulation: _waits(_PARTS),
    ops.add_grads: _between_buckets("accumulate"),
    ops.copy_grads: _between_buckets("copy"),
    ops.sum_over_stages: _sum_over_stages,
    ops.start_reduction: _start_reduction,
    ops.wait_reduction: _waits("gradients of {}"),
    ops.squared_norm: _squared_norm,
    ops.sum_over_ranks: _sum_over_ranks,
    ops.update_parameters: _update_parameters,
    ops.keep_weights: _keep_weights,
    ops.update_stage: _update_stage,
    ops.convert_weights: _convert_weights,
    ops.start_weights: _start_weights,
    ops.wait_weights: _waits("weights of {}"),
}
