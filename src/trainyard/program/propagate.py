"""Propagation: from the placements a plan names to one choice per op, on one mesh axis.

A plan names the placements of parameters, inputs and a few activations; the rest is completed here,
op by op in topological order, each taking the choice that moves the fewest bytes now or leaves the fewest to be
moved later (GSPMD's idea of a few annotations propagated, arXiv 2105.04663, with costs in place of priorities).
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import torch
from torch import fx

from trainyard.program import spmd
from trainyard.program.addresses import address
from trainyard.program.algebra.indexing import COUNTERS
from trainyard.program.algebra.lookups import INDEX
from trainyard.program.algebra.notation import Choice, options
from trainyard.program.algebra.rules import axes_of, tensor_args
from trainyard.program.cheapest import Operand, Result, cheapest, size_of
from trainyard.program.choices import ChoiceError, given_choices
from trainyard.program.decompose import forward_of
from trainyard.program.orders import order_mark, stays
from trainyard.program.placement import (
    REPLICATE,
    Divisor,
    OpChoice,
    Partial,
    Placement,
    Replicate,
    Shard,
    Share,
)
from trainyard.program.program import Program, output_args, tensors_of
from trainyard.reading.arguments import WrongValueError

aten = torch.ops.aten

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
    size : parts into which a dimension is cut. Ranks hold one each, unless the axis ``is_uneven``.
    sequential : they run one after the other (microbatches). Then exchanging is the last resort, however few the bytes,
        and terms of sums are left to be added at the end.
    held : parts of the rank for which is written.
    """

    name: str
    size: int
    sequential: bool = False
    held: int = 1
    is_uneven: bool = False

    @property
    def divisor(self) -> Divisor:
        """By which a dimension is divided for the rank for which is written."""
        return Share(0, self.held, self.size).divisor


@dataclass
class Assignment:
    """The completed decision for one axis.

    Attributes
    ----------
    program : what runs; in a final assignment, with those ops written out that are cut apart.
    choice : how each op is run.
    made : the placement in which each op's results come out; one per result.
    wanted : the placement in which a node's results were asked for, where the plan or propagation did.
    now : the placement in which a node's one result is found at this point of the propagation.
    moved : placements to which a node's result has been moved already, by node and phase.
    expand : ops that are to be written out (``decompose.expand``) before this axis is cut, because a dimension
        that they need whole is cut. As long as there are any, the assignment is a sketch.
    expanded : names of the ops that were written out before, all at once or in several rounds.
    given : how the ops run of which the plan says it, and to where the result of each is moved at once, if anywhere.
    """

    axis: Axis
    program: Program
    given: Mapping[fx.Node, tuple[Choice, Placement | None]] = field(default_factory=dict)
    choice: dict[fx.Node, Choice] = field(default_factory=dict)
    made: dict[fx.Node, tuple[Placement, ...]] = field(default_factory=dict)
    wanted: dict[tuple[fx.Node, int], Placement] = field(default_factory=dict)
    now: dict[fx.Node, Placement] = field(default_factory=dict)
    moved: dict[tuple[fx.Node, str], frozenset[Placement]] = field(default_factory=dict)
    expand: set[fx.Node] = field(default_factory=set)
    expanded: tuple[frozenset[str], ...] = ()

    def applied_to(self, program: Program, axis: Axis) -> Assignment:
        """The same decisions for a program of the same ops, whose shapes are others."""
        same = dict(zip(self.program.graph.nodes, program.graph.nodes, strict=True))
        return Assignment(
            axis,
            program,
            choice={same[node]: choice for node, choice in self.choice.items()},
            made={same[node]: made for node, made in self.made.items()},
            wanted={(same[node], i): placement for (node, i), placement in self.wanted.items()},
        )

    def settled(self, node: fx.Node) -> Placement:
        """The placement in which a node's one result is offered to its users."""
        return self.wanted.get((node, 0), self.made[node][0])

    def decided(self) -> dict[str, OpChoice]:
        """The choice of every op by its address: all that was decided. Given to `propagate`, it leaves nothing open."""
        found: dict[str, OpChoice] = {}
        for node, made in self.made.items():
            moved = len(made) == 1 and node.op == "call_function" and self.settled(node) != made[0]
            moved_to = self.settled(node) if moved else None
            if node in self.choice and not spmd.is_scalar(node):
                found[address(node)] = OpChoice(self.choice[node].operands, made, moved_to)
            elif moved:
                found[address(node)] = OpChoice((), made, moved_to)
        return found


def propagate(
    program: Program,
    axis: Axis,
    wanted: Mapping[str, Placement],
    choices: Mapping[str, OpChoice] = MappingProxyType({}),
) -> Assignment:
    """Complete ``wanted`` and ``choices`` to all ops.

    Parameters
    ----------
    program : what runs; its shapes are whole with respect to this axis.
    wanted : placements by the address of an op, by input path (``blocks.0.mlp.weight``), or by ``grad:<path>``.
    choices : by address or pattern, how ops run. They run so, whatever it costs, and their results are moved to where the
        choice or ``wanted`` says by the op's address, and nowhere else unasked.

    Raises
    ------
    KeyError
        If ``wanted`` names nothing of the program.
    ChoiceError
        If there is no op to a choice, or it cannot run so.
    WrongValueError
        If a wanted placement does not divide the tensor evenly.
    """
    result = Assignment(axis, program, given_choices(program, axis.name, axis.size, choices))
    _resolve_names(program, wanted, result)
    _settle_given(wanted, result)
    _draw_with_rows(program, result)
    _push_back(program, result)
    params = _params_and_views(program)
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
            _check_taken(node, result)
        elif _is_expanded(node, result):
            result.expand.add(node)
            _sketch(node, result)
        else:
            _choose(node, result, params)
            if (
                "part_of" in node.meta
                and node not in result.given
                and isinstance(result.made[node][0], Partial)
            ):
                # A statistic is small and used several times: reduced at once, it is reduced once.
                result.wanted.setdefault((node, 0), REPLICATE)
        if len(result.made[node]) == 1:
            result.now[node] = result.settled(node)
        if node is last and result.expand:
            result.expand |= {n for n in program.graph.nodes if forward_of(n) in result.expand}
            break
    return result


def _params_and_views(program: Program) -> set[fx.Node]:
    """Parameters, and what only passes them on."""
    found = {program.nodes[i.node] for i in program.params}
    for node in program.graph.nodes:
        if node.target in _PASS_THROUGH and all(source in found for source in tensor_args(node)):
            found.add(node)
    return found


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
                raise WrongValueError(
                    f"{name} has several results; say how those of them lie that its getitem take"
                )
            shape = node.meta["val"].shape
            if placement.dim >= len(shape) or shape[placement.dim] % (placement.blocks * result.axis.size):
                raise WrongValueError(
                    f"{name} of shape {tuple(shape)} cannot lie as {placement} on the {result.axis.size} ranks of axis "
                    f"{result.axis.name!r}: the dimension must divide by {placement.blocks * result.axis.size}"
                )
        if result.wanted.setdefault((node, 0), placement) != placement:
            unlike.add(node)
    # The gradient of two parameters that lie in different ways is moved for each (`shard`).
    for node in unlike:
        del result.wanted[node, 0]


def _settle_given(wanted: Mapping[str, Placement], result: Assignment) -> None:
    """Want of an op whose choice is given only the placement at its address."""
    for node, (_, moved_to) in result.given.items():
        placed = wanted.get(address(node))
        if None not in (placed, moved_to) and placed != moved_to:
            raise ChoiceError(
                f"{address(node)} is placed {placed}, and its choice moves it to {moved_to}; say one of both"
            )
        need = moved_to or placed
        if need is None:
            result.wanted.pop((node, 0), None)
        else:
            result.wanted[node, 0] = need


def _check_taken(getitem: fx.Node, result: Assignment) -> None:
    """Check that a choice for one of several results is what its op makes."""
    made, (said, _) = result.made[getitem], result.given.get(getitem, (None, None))
    if said is not None and (said.operands, said.results) != ((), made):
        raise ChoiceError(
            f"{address(getitem)} takes a result of {address(getitem.all_input_nodes[0])}, which makes it as {made[0]}; "
            f"its choice says {said.text}. Write -> {made[0]}, and the placement to which it is moved after it"
        )


def _draw_with_rows(program: Program, result: Assignment) -> None:
    """Draw random numbers for a rank's own rows only, where the rows of the batch are cut."""
    batch = [program.nodes[i.node] for i in program.inputs if i.kind == "batch"]
    if Shard(0) not in [result.wanted.get((node, 0)) for node in batch]:
        return
    for node in program.graph.find_nodes(op="call_function", target=torch.ops.trainyard.draw.default):
        whole, (batch_dim, row_elements) = node.meta["val"].shape, node.args[4:6]
        if node not in result.given and row_elements and whole[batch_dim] % result.axis.size == 0:
            result.wanted.setdefault((node, 0), Shard(batch_dim))


def _push_back(program: Program, result: Assignment) -> None:
    """Pass the wanted placement of a gradient to the op that computes it, through views and sums."""
    for node in reversed(program.graph.nodes):
        placement = result.wanted.get((node, 0))
        if placement is None or node.meta.get("phase") != "backward" or node in result.given:
            continue
        if node.target is operator.getitem:
            if node.args[0] not in result.given:
                result.wanted.setdefault((node.args[0], _result_index(node)), placement)
        elif node.target in _PASS_THROUGH:
            for choice in options(axes_of(node), [], {0: placement}, result.axis.size):
                if choice.results == tuple(result.wanted.get((node, i)) for i in range(len(choice.results))):
                    for source, wish in zip(tensor_args(node), choice.operands, strict=True):
                        is_backward = source.meta.get("phase") == "backward"
                        if is_backward and source not in result.given and len(source.users) == 1:
                            result.wanted.setdefault((source, 0), wish)
                    break


def _result_index(getitem: fx.Node) -> int:
    """Which of the tensors among its parent's results a ``getitem`` takes; results that are None do not count."""
    parent, index = getitem.args
    return sum(isinstance(v, torch.Tensor) for v in parent.meta["val"][:index])  # type: ignore[union-attr]


def _is_expanded(node: fx.Node, result: Assignment) -> bool:
    """Whether an op that can be written out needs a dimension whole that is cut, or differentiates such an op."""
    if node in result.given:
        return False
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
    sources, phase = tensor_args(node), node.meta["phase"]
    if node.target in COUNTERS and order_mark(node).part_divisor:
        # It has one user, which writes its numbers at those of the order.
        order = tensor_args(next(iter(node.users)))[INDEX]
        result.wanted.setdefault((node, 0), result.now[order])
    given, _ = result.given.get(node, (None, None))
    best = _best(node, sources, result, params) if given is None else given
    result.choice[node] = best
    result.made[node] = best.results
    for source, need in zip(sources, best.operands, strict=True):
        have = result.now[source]
        if have != need:
            result.moved[source, phase] = result.moved.get((source, phase), frozenset()) | {need}
        # Once reduced, always reduced: later ops see the cheaper placement.
        if isinstance(have, Partial) and isinstance(need, Replicate):
            result.now[source] = need


def _best(node: fx.Node, sources: list[fx.Node], result: Assignment, params: set[fx.Node]) -> Choice:
    """The choice that moves the fewest bytes."""
    phase = node.meta["phase"]
    operands = tuple(
        Operand(
            have := result.now[source],
            size_of(source.meta["val"]),
            source in params,
            len(source.users) if isinstance(have, Partial) else 1,
            result.moved.get((source, phase), frozenset()),
            stays(source, have),
        )
        for source in sources
    )
    results = tuple(Result(size_of(t), result.wanted.get((node, i))) for i, t in enumerate(tensors_of(node)))
    axis = result.axis
    is_term = _is_summed_further(node)
    return cheapest(
        axes_of(node), operands, results, is_term, axis.size, axis.sequential, only_sums=axis.is_uneven
    )


def _is_summed_further(node: fx.Node) -> bool:
    """Whether a sum is only a term of another sum, as where the gradients of several branches meet."""
    return len(node.users) == 1 and next(iter(node.users)).target is node.target is aten.add.Tensor
