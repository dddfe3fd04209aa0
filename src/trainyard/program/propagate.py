"""Propagation: from the placements a plan names to one choice per op, on one mesh axis.

A plan names the placements of parameters, inputs, gradients and a few activations; the rest is completed here,
op by op in topological order, each taking the choice that moves the fewest bytes now or leaves the fewest to be
moved later (GSPMD's idea of a few annotations propagated, arXiv 2105.04663, with costs in place of priorities).
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import fx

from trainyard.program.algebra.notation import Choice, OpAxes, blocks_at, choices
from trainyard.program.algebra.rules import axes_of, tensor_args
from trainyard.program.decompose import forward_of
from trainyard.program.placement import REPLICATE, Partial, Placement, Replicate, Shard
from trainyard.program.program import Program, output_args, size_bytes, tensors_of

aten = torch.ops.aten

# A parameter's placement is the plan's decision: moving it instead of an activation is a last resort.
_PARAM_MOVE_PENALTY = 100.0
# Partial sums are better reduced later than now: the sum of two is reduced once.
_LATER = 0.99
# What ranks that run one after the other cannot do while they run.
_IN_TURNS_PENALTY = 1e6
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
    aten._weight_norm_interface_backward.default,
}


@dataclass(frozen=True)
class Axis:
    """A mesh axis: ranks that split the work of every op between them.

    Attributes
    ----------
    sequential : they run one after the other (microbatches). Then exchanging is the last resort, however few the bytes,
        and terms of sums are left to be added at the end.
    """

    name: str
    size: int
    sequential: bool = False


@dataclass
class Assignment:
    """The completed decision for one axis.

    Attributes
    ----------
    choice : how each op is run.
    made : the placement in which each op's results come out; one per result.
    wanted : the placement in which a node's results were asked for, where the plan or propagation did.
    now : the placement in which a node's one result is found at this point of the propagation.
    moved : placements to which a node's result has been moved already, by node and phase.
    expand : ops that are to be written out (``decompose.expand``) before this axis is cut, because a dimension
        that they need whole is cut. As long as there are any, the assignment is a sketch.
    """

    axis: Axis
    choice: dict[fx.Node, Choice] = field(default_factory=dict)
    made: dict[fx.Node, tuple[Placement, ...]] = field(default_factory=dict)
    wanted: dict[tuple[fx.Node, int], Placement] = field(default_factory=dict)
    now: dict[fx.Node, Placement] = field(default_factory=dict)
    moved: dict[tuple[fx.Node, str], frozenset[Placement]] = field(default_factory=dict)
    expand: set[fx.Node] = field(default_factory=set)

    def settled(self, node: fx.Node) -> Placement:
        """The placement in which a node's one result is offered to its users."""
        return self.wanted.get((node, 0), self.made[node][0])


def propagate(program: Program, axis: Axis, wanted: Mapping[str, Placement]) -> Assignment:
    """Complete ``wanted`` to all ops.

    Parameters
    ----------
    program : what runs; its shapes are whole with respect to this axis.
    wanted : placements by the address of an op, by input path (``blocks.0.mlp.weight``), or by ``grad:<path>``.

    Raises
    ------
    KeyError
        If ``wanted`` names nothing of the program.
    ValueError
        If a wanted placement does not divide the tensor evenly.
    """
    result = Assignment(axis)
    _resolve_names(program, wanted, result)
    _draw_with_rows(program, result)
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
    unlike: set[fx.Node] = set()
    for name, placement in wanted.items():
        node = by_path.get(name) or by_output.get(name) or program.addresses.nodes.get(name)
        if node is None:
            raise KeyError(
                f"{name!r} is no tensor of {program.name}; name a parameter, an input, grad:<parameter> or an op"
            )
        if isinstance(placement, Shard):
            if not isinstance(node.meta["val"], torch.Tensor):
                raise ValueError(
                    f"{name} has several results; say how those of them lie that its getitem take"
                )
            shape = node.meta["val"].shape
            if placement.dim >= len(shape) or shape[placement.dim] % (placement.blocks * result.axis.size):
                raise ValueError(
                    f"{name} of shape {tuple(shape)} cannot lie as {placement} on the {result.axis.size} ranks of axis "
                    f"{result.axis.name!r}: the dimension must divide by {placement.blocks * result.axis.size}"
                )
        if result.wanted.setdefault((node, 0), placement) != placement:
            unlike.add(node)
    # The gradient of two parameters that lie in different ways is moved for each (`shard`).
    for node in unlike:
        del result.wanted[node, 0]


def _draw_with_rows(program: Program, result: Assignment) -> None:
    """Where the rows of the batch are cut, random numbers are drawn for a rank's own rows only."""
    batch = [program.nodes[i.node] for i in program.inputs if i.kind == "batch"]
    if Shard(0) not in [result.wanted.get((node, 0)) for node in batch]:
        return
    for node in program.graph.find_nodes(op="call_function", target=torch.ops.trainyard.draw.default):
        whole, (batch_dim, row_elements) = node.meta["val"].shape, node.args[4:6]
        if row_elements and whole[batch_dim] % result.axis.size == 0:
            result.wanted.setdefault((node, 0), Shard(batch_dim))


def _push_back(program: Program, result: Assignment) -> None:
    """What is wanted of a gradient is wanted of the op that computes it, through views and sums."""
    for node in reversed(program.graph.nodes):
        placement = result.wanted.get((node, 0))
        if placement is None or node.meta.get("phase") != "backward":
            continue
        if node.target is operator.getitem:
            result.wanted.setdefault((node.args[0], _result_index(node)), placement)
        elif node.target in _PASS_THROUGH:
            for choice in _options(axes_of(node), [], {0: placement}, result.axis.size):
                if choice.results == tuple(result.wanted.get((node, i)) for i in range(len(choice.results))):
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
    phase = node.meta["phase"]
    operands = tuple(
        _Operand(
            have := result.now[source],
            _size(source.meta["val"]),
            source in params,
            len(source.users) if isinstance(have, Partial) else 1,
            result.moved.get((source, phase), frozenset()),
        )
        for source in sources
    )
    results = tuple(_Result(_size(t), result.wanted.get((node, i))) for i, t in enumerate(tensors_of(node)))
    best = _cheapest(axes_of(node), operands, results, _is_summed_further(node), result.axis)
    result.choice[node] = best
    result.made[node] = best.results
    for source, need in zip(sources, best.operands, strict=True):
        have = result.now[source]
        if have != need:
            result.moved[source, phase] = result.moved.get((source, phase), frozenset()) | {need}
        # Once reduced, always reduced: later ops see the cheaper placement.
        if isinstance(have, Partial) and isinstance(need, Replicate):
            result.now[source] = need


class _Size(NamedTuple):
    """How large a tensor is."""

    num_bytes: int
    numel: int


def _size(value: torch.Tensor) -> _Size:
    return _Size(size_bytes(value), value.numel())


class _Operand(NamedTuple):
    """What the cost of moving an operand depends on.

    Attributes
    ----------
    have : where it is found.
    num_users : of partial sums; 1 of others.
    moved : where it has been moved already in this phase.
    """

    have: Placement
    size: _Size
    is_param: bool
    num_users: int
    moved: frozenset[Placement]


class _Result(NamedTuple):
    """A result and where it is wanted, if anywhere."""

    size: _Size
    want: Placement | None


@lru_cache(maxsize=2**16)
def _cheapest(
    axes: OpAxes, operands: tuple[_Operand, ...], results: tuple[_Result, ...], is_term: bool, axis: Axis
) -> Choice:
    """The choice of an op that moves the fewest bytes; blocks repeat, so most ops have been decided before.

    Parameters
    ----------
    is_term : whether the op is a sum that is only a term of another sum.
    """
    moves = _Moves(operands, results, is_term, axis.size, axis.sequential)
    wishes = {i: r.want for i, r in enumerate(results) if r.want is not None}
    best: Choice | None = None
    best_cost = float("inf")
    for option in _options(axes, [o.have for o in operands], wishes, axis.size):
        cost = moves.cost(option, best_cost)
        # Of equally cheap ones the first, in which the fewest dimensions are cut, unless another is as wanted.
        if cost < best_cost:
            best, best_cost = option, cost
    assert best is not None
    return best


@dataclass
class _Moves:
    """What the choices of one op move. What is asked for every choice is found once."""

    operands: tuple[_Operand, ...]
    results: tuple[_Result, ...]
    is_term: bool
    num_ranks: int
    sequential: bool
    _known: dict[tuple[int, Placement], float] = field(default_factory=dict)

    def cost(self, option: Choice, limit: float) -> float:
        """Bytes moved now for the operands, and later for the results; from ``limit`` on it is not counted further."""
        cost = 0.0
        for i, need in enumerate(option.operands):
            if need != self.operands[i].have:
                cost += self._operand(i, need)
        if cost >= limit:
            return cost
        for (size, want), placement in zip(self.results, option.results, strict=True):
            if want is None and isinstance(placement, Partial):
                cost += 0.0 if self.sequential else _LATER * _reduce_bytes(size.num_bytes, self.num_ranks)
            elif want is not None and want != placement:
                # A result that is computed whole to be cut is work done twice.
                again = isinstance(placement, Replicate) and isinstance(want, Shard)
                cost += size.num_bytes if again else _move_cost(size, placement, want, [size], self.num_ranks)
        return cost

    def _operand(self, index: int, need: Placement) -> float:
        if (index, need) not in self._known:
            self._known[index, need] = self._move(self.operands[index], need)
        return self._known[index, need]

    def _move(self, operand: _Operand, need: Placement) -> float:
        if need in operand.moved:
            return 0.0
        have, size = operand.have, operand.size
        if self.sequential:
            return (_LOCAL_CUT_COST if isinstance(have, Replicate) else _IN_TURNS_PENALTY) * size.num_bytes
        moved = _move_cost(size, have, need, [r.size for r in self.results], self.num_ranks)
        if isinstance(have, Replicate) and isinstance(need, Partial) and self.is_term:
            moved = _LOCAL_CUT_COST * size.num_bytes
        if isinstance(have, Partial) and isinstance(need, Replicate):
            # What is reduced for one user is reduced for all; what is passed on is reduced by each.
            moved /= max(1, operand.num_users)
        return moved * (_PARAM_MOVE_PENALTY if operand.is_param else 1.0)


def _is_summed_further(node: fx.Node) -> bool:
    """Whether a sum is only a term of another sum, as where the gradients of several branches meet."""
    return len(node.users) == 1 and next(iter(node.users)).target is node.target is aten.add.Tensor


def _options(
    axes: OpAxes, have: list[Placement], wishes: Mapping[int, Placement], num_ranks: int
) -> tuple[Choice, ...]:
    """The choices of an op, blocked cuts among them where an operand or a wish has one."""
    blocks = [b for dims, p in zip(axes.operands, have, strict=False) for b in blocks_at(axes, dims, p)]
    blocks += [b for i, p in wishes.items() for b in blocks_at(axes, axes.results[i], p)]
    return choices(axes, num_ranks, tuple(blocks))


def _reduce_bytes(num_bytes: int, num_ranks: int) -> float:
    return 2 * (num_ranks - 1) / num_ranks * num_bytes


def _move_cost(size: _Size, have: Placement, need: Placement, results: list[_Size], num_ranks: int) -> float:
    """Bytes a rank sends to bring a tensor from one placement to another, for an op with these results."""
    if have == need:
        return 0.0
    num_bytes = size.num_bytes
    part = (num_ranks - 1) / num_ranks * num_bytes
    if isinstance(have, Replicate):
        full = isinstance(need, Partial) and any(size.numel >= r.numel for r in results)
        # Turning a large replicated tensor into a term of a sum only postpones the reduction of the others.
        return 2 * part if full else _LOCAL_CUT_COST * num_bytes
    if isinstance(have, Partial):
        # Half as much is sent for a shard, but then the gradient's path has it gathered again: no gain unasked.
        return 2 * part if not isinstance(need, Partial) else float("inf")
    if isinstance(need, Shard):
        return part / num_ranks
    return part if isinstance(need, Replicate) else part + num_bytes
