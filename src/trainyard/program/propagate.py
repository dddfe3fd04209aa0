"""Propagation: from the placements a plan names to one choice per op, on one mesh axis.

A plan names the placements of parameters, inputs, gradients and a few activations; the rest is completed here,
op by op in topological order, each taking the choice that moves the fewest bytes now or leaves the fewest to be
moved later (GSPMD's idea of a few annotations propagated, arXiv 2105.04663, with costs in place of priorities).
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import fx

from trainyard.program.algebra.notation import Choice, blocks_at, choices
from trainyard.program.algebra.rules import axes_of, tensor_args
from trainyard.program.decompose import forward_of
from trainyard.program.placement import REPLICATE, Partial, Placement, Replicate, Shard
from trainyard.program.program import Program, output_args, size_bytes, tensors_of

aten = torch.ops.aten

# A parameter's placement is the plan's decision: moving it instead of an activation is a last resort.
_PARAM_MOVE_PENALTY = 100.0
# Partial sums are better reduced later than now: the sum of two is reduced once.
_LATER = 0.99
# Cutting or masking a replicated tensor moves nothing but is not free either; it breaks ties.
_LOCAL_CUT_COST = 1e-3

_PASS_THROUGH = {
    aten.view.default,
    aten.t.default,
    aten.transpose.int,
    aten.permute.default,
    aten.unsqueeze.default,
    aten.squeeze.dim,
    aten.add.Tensor,
    aten.clone.default,
}


@dataclass(frozen=True)
class Axis:
    """A mesh axis: ranks that split the work of every op between them."""

    name: str
    size: int


@dataclass
class Assignment:
    """The completed decision for one axis.

    Attributes
    ----------
    choice : how each op is run.
    made : the placement in which each op's results come out; one per result.
    wanted : the placement in which a node's results were asked for, where the plan or propagation did.
    now : the placement in which a node's one result is found at this point of the propagation.
    moved : placements to which a node's result has been moved already, by phase.
    expand : ops that are to be written out (``decompose.expand``) before this axis is cut, because a dimension
        that they need whole is cut. As long as there are any, the assignment is a sketch.
    """

    axis: Axis
    choice: dict[fx.Node, Choice] = field(default_factory=dict)
    made: dict[fx.Node, tuple[Placement, ...]] = field(default_factory=dict)
    wanted: dict[tuple[fx.Node, int], Placement] = field(default_factory=dict)
    now: dict[fx.Node, Placement] = field(default_factory=dict)
    moved: set[tuple[fx.Node, Placement, str]] = field(default_factory=set)
    expand: set[fx.Node] = field(default_factory=set)

    def settled(self, node: fx.Node) -> Placement:
        """The placement in which a node's one result is offered to its users."""
        return self.wanted.get((node, 0), self.made[node][0])


def propagate(program: Program, axis: Axis, wanted: Mapping[str, Placement]) -> Assignment:
    """Complete ``wanted`` to all ops.

    Parameters
    ----------
    program : what runs; its shapes are whole with respect to this axis.
    wanted : placements by node name, by input path (``blocks.0.mlp.weight``), or by ``grad:<path>``.

    Raises
    ------
    KeyError
        If ``wanted`` names nothing of the program.
    ValueError
        If a wanted placement does not divide the tensor evenly.
    """
    result = Assignment(axis)
    _resolve_names(program, wanted, result)
    _push_back(program, result)
    params = {program.nodes[i.node] for i in program.params}
    for node in program.graph.nodes:
        if node.target in _PASS_THROUGH and all(source in params for source in tensor_args(node)):
            params.add(node)
    # What a sketch is for is known once the last forward op that could be expanded has been seen.
    last = next((n for n in reversed(program.graph.nodes) if forward_of(n) is n), None)
    for node in program.graph.nodes:
        if node.op == "output":
            continue
        if node.op == "placeholder":
            placement = result.wanted.get((node, 0), REPLICATE)
            result.made[node] = (placement,)
        elif node.target is operator.getitem:
            result.made[node] = (result.made[node.args[0]][_result_index(node)],)
        elif _is_expanded(node, result):
            result.expand.add(node)
            _sketch(node, result)
        else:
            _choose(node, result, params)
            if "part_of" in node.meta and isinstance(result.made[node][0], Partial):
                # A statistic is small and used several times: reduced at once, it is reduced once.
                result.wanted.setdefault((node, 0), REPLICATE)
        if len(result.made[node]) == 1:
            result.now[node] = result.settled(node)
        if node is last and result.expand:
            result.expand |= {n for n in program.graph.nodes if forward_of(n) in result.expand}
            break
    return result


def _resolve_names(program: Program, wanted: Mapping[str, Placement], result: Assignment) -> None:
    by_path = {i.path: program.nodes[i.node] for i in program.inputs}
    by_output = {
        f"{o.kind}:{o.path}": n
        for o, n in zip(program.outputs, output_args(program.graph), strict=True)
        if n is not None
    }
    for name, placement in wanted.items():
        node = by_path.get(name) or by_output.get(name) or program.nodes.get(name)
        if node is None:
            raise KeyError(
                f"{name!r} is no tensor of {program.name}; name a parameter, an input, grad:<parameter> or a node"
            )
        if isinstance(placement, Shard):
            shape = node.meta["val"].shape
            if placement.dim >= len(shape) or shape[placement.dim] % (placement.blocks * result.axis.size):
                raise ValueError(
                    f"{name} of shape {tuple(shape)} cannot lie as {placement} on the {result.axis.size} ranks of axis "
                    f"{result.axis.name!r}: the dimension must divide by {placement.blocks * result.axis.size}"
                )
        result.wanted[node, 0] = placement


def _push_back(program: Program, result: Assignment) -> None:
    """What is wanted of a gradient is wanted of the op that computes it, through views and sums."""
    for node in reversed(program.graph.nodes):
        placement = result.wanted.get((node, 0))
        if placement is None or node.meta.get("phase") != "backward":
            continue
        if node.target is operator.getitem:
            result.wanted.setdefault((node.args[0], _result_index(node)), placement)
        elif node.target in _PASS_THROUGH:
            for choice in _options(node, [], {0: placement}, result.axis.size):
                if choice.results == (placement,):
                    for source, wish in zip(tensor_args(node), choice.operands, strict=True):
                        if source.meta.get("phase") == "backward" and len(source.users) == 1:
                            result.wanted.setdefault((source, 0), wish)
                    break


def _result_index(getitem: fx.Node) -> int:
    """Which of the tensors among its parent's results a ``getitem`` takes; results that are None do not count."""
    parent, index = getitem.args
    return sum(isinstance(v, torch.Tensor) for v in parent.meta["val"][:index])  # type: ignore[union-attr]


def _is_expanded(node: fx.Node, result: Assignment) -> bool:
    """Whether an op that can be written out needs a dimension whole that is cut, or differentiates such an op."""
    forward = forward_of(node)
    if forward is None or forward is not node:
        return forward in result.expand
    axes, source = axes_of(node), tensor_args(node)[0]
    placement = result.now[source]
    if not isinstance(placement, Shard):
        return False
    return any(f in axes.whole for f in axes.operands[0][placement.dim])


def _sketch(node: fx.Node, result: Assignment) -> None:
    """The placements to which an op that is written out will come: of its first operand, statistics whole."""
    source = tensor_args(node)[0]
    shape = source.meta["val"].shape
    result.made[node] = tuple(result.now[source] if t.shape == shape else REPLICATE for t in tensors_of(node))


def _choose(node: fx.Node, result: Assignment, params: set[fx.Node]) -> None:
    sources = tensor_args(node)
    values = list(tensors_of(node))
    forced = {i: p for i in range(len(values)) if (p := result.wanted.get((node, i))) is not None}
    options = _options(node, [result.now[s] for s in sources], forced, result.axis.size)
    moves = _Moves(node, sources, values, result, params)
    best: Choice | None = None
    best_cost = float("inf")
    for option in options:
        cost = moves.cost(option, forced, best_cost)
        # Of equally cheap ones the first, in which the fewest dimensions are cut, unless another is as wanted.
        if cost < best_cost:
            best, best_cost = option, cost
    assert best is not None
    result.choice[node] = best
    result.made[node] = best.results
    for source, need in zip(sources, best.operands, strict=True):
        if result.now[source] != need:
            result.moved.add((source, need, node.meta["phase"]))
        # Once reduced, always reduced: later ops see the cheaper placement.
        if isinstance(result.now[source], Partial) and isinstance(need, Replicate):
            result.now[source] = need


class _Moves:
    """What the choices of one op move. What is asked for every choice is found once."""

    def __init__(
        self,
        node: fx.Node,
        sources: list[fx.Node],
        values: list[torch.Tensor],
        result: Assignment,
        params: set[fx.Node],
    ) -> None:
        self.node, self.sources, self.values, self.params = node, sources, values, params
        self.now = [result.now[s] for s in sources]
        self.moved, self.num_ranks = result.moved, result.axis.size
        self._known: dict[tuple[int, Placement], float] = {}

    def cost(self, option: Choice, forced: Mapping[int, Placement], limit: float) -> float:
        """Bytes moved now for the operands, and later for the results; from ``limit`` on it is not counted further."""
        cost = 0.0
        for i, need in enumerate(option.operands):
            if need != self.now[i]:
                cost += self._operand(i, need)
        if cost >= limit:
            return cost
        for i, (value, placement) in enumerate(zip(self.values, option.results, strict=True)):
            want = forced.get(i)
            if want is None and isinstance(placement, Partial):
                cost += _LATER * _reduce_bytes(size_bytes(value), self.num_ranks)
            elif want is not None and want != placement:
                # A result that is computed whole to be cut is work done twice.
                again = isinstance(placement, Replicate) and isinstance(want, Shard)
                move = _move_cost(value, placement, want, [value], self.num_ranks)
                cost += size_bytes(value) if again else move
        return cost

    def _operand(self, index: int, need: Placement) -> float:
        if (index, need) not in self._known:
            self._known[index, need] = self._move(self.sources[index], self.now[index], need)
        return self._known[index, need]

    def _move(self, source: fx.Node, have: Placement, need: Placement) -> float:
        if (source, need, self.node.meta["phase"]) in self.moved:
            return 0.0
        value = source.meta["val"]
        moved = _move_cost(value, have, need, self.values, self.num_ranks)
        if isinstance(have, Replicate) and isinstance(need, Partial) and _is_summed_further(self.node):
            moved = _LOCAL_CUT_COST * size_bytes(value)
        if isinstance(have, Partial) and isinstance(need, Replicate):
            # What is reduced for one user is reduced for all; what is passed on is reduced by each.
            moved /= max(1, len(source.users))
        return moved * (_PARAM_MOVE_PENALTY if source in self.params else 1.0)


def _is_summed_further(node: fx.Node) -> bool:
    """Whether a sum is only a term of another sum, as where the gradients of several branches meet."""
    return len(node.users) == 1 and next(iter(node.users)).target is node.target is aten.add.Tensor


def _options(
    node: fx.Node, have: list[Placement], forced: Mapping[int, Placement], num_ranks: int
) -> tuple[Choice, ...]:
    """The choices of a node, blocked cuts among them where an operand or a wish has one."""
    axes = axes_of(node)
    blocks = [b for dims, p in zip(axes.operands, have, strict=False) for b in blocks_at(axes, dims, p)]
    blocks += [b for i, p in forced.items() for b in blocks_at(axes, axes.results[i], p)]
    return choices(axes, num_ranks, tuple(blocks))


def _reduce_bytes(num_bytes: int, num_ranks: int) -> float:
    return 2 * (num_ranks - 1) / num_ranks * num_bytes


def _move_cost(
    value: torch.Tensor, have: Placement, need: Placement, results: list[torch.Tensor], num_ranks: int
) -> float:
    """Bytes a rank sends to bring a tensor from one placement to another, for an op with these results."""
    if have == need:
        return 0.0
    num_bytes = size_bytes(value)
    part = (num_ranks - 1) / num_ranks * num_bytes
    if isinstance(have, Replicate):
        full = isinstance(need, Partial) and any(value.numel() >= r.numel() for r in results)
        # Turning a large replicated tensor into a term of a sum only postpones the reduction of the others.
        return 2 * part if full else _LOCAL_CUT_COST * num_bytes
    if isinstance(have, Partial):
        # Half as much is sent for a shard, but then the gradient's path has it gathered again: no gain unasked.
        return 2 * part if not isinstance(need, Partial) else float("inf")
    if isinstance(need, Shard):
        return part / num_ranks
    return part if isinstance(need, Replicate) else part + num_bytes
