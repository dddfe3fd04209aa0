"""Tensor-parallel regions of a model, found from the graph.

A *tensor-parallel region* (arXiv 1909.08053, section 3) begins with column-parallel products, whose weights are cut by
columns, and ends with one row-parallel product, whose weight is cut by rows. In between, every rank works on its own
part, without communication. Nothing here knows the name of a parameter. From every product with a weight, a cut of the
summed dimension is followed backward, op by op, through the index algebra, until it ends in the columns of other
weights. If it ends anywhere else, or a value on the way is also needed whole, there is no region. This finds MLPs,
gated MLPs, attention with fused or separate projections and grouped queries, and the two products inside each expert
of a mixture.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch
from torch import fx

from trainyard.program.algebra.notation import Choice, blocks_at, choices
from trainyard.program.algebra.rules import axes_of, tensor_args
from trainyard.program.grouped_product import GROUPED_PRODUCT
from trainyard.program.placement import Placement, Shard
from trainyard.program.program import Program, output_args, tensors_of

aten = torch.ops.aten

PRODUCTS = frozenset(
    {aten.mm.default, aten.addmm.default, aten.bmm.default, aten.baddbmm.default, GROUPED_PRODUCT}
)
_SOFTMAX = frozenset({aten._softmax.default, aten._safe_softmax.default})
FUSED_ATTENTION = frozenset(
    {
        aten._scaled_dot_product_flash_attention_for_cpu.default,
        aten._scaled_dot_product_flash_attention.default,
        aten._scaled_dot_product_efficient_attention.default,
        aten._scaled_dot_product_cudnn_attention.default,
    }
)
_NORM_OPS = 6  # square, mean, epsilon, root, conversions


@dataclass(frozen=True, eq=False)
class TensorParallelRegion:
    """Products cut by columns, a product cut by rows, and what lies between them.

    Attributes
    ----------
    columns : the column-parallel products.
    row : the row-parallel product.
    between : ops from the columns (exclusive) to the row (exclusive), on whose parts the ranks work alone.
    placements : of the parameters, by path.
    """

    columns: tuple[fx.Node, ...]
    row: fx.Node
    between: frozenset[fx.Node]
    placements: Mapping[str, Placement]

    @property
    def is_attention(self) -> bool:
        """True if a softmax, alone or in a fused kernel, stands between the products."""
        return any(n.target in _SOFTMAX | FUSED_ATTENTION for n in self.between)


class _NoRegionError(Exception):
    """The cut cannot be followed further."""


def forward_ops(program: Program) -> list[fx.Node]:
    """Forward ops in program order."""
    return [n for n in program.graph.nodes if n.op == "call_function" and n.meta["phase"] == "forward"]


def weights_of(program: Program) -> dict[fx.Node, str]:
    """Placeholders of parameters, and views of single parameters, to the parameter's path."""
    found = {program.nodes[i.node]: i.path for i in program.params}
    for node in forward_ops(program):
        sources = node.all_input_nodes
        if (
            node.target not in PRODUCTS
            and len(sources) == 1
            and sources[0] in found
            and _keeps_elements(node)
        ):
            found[node] = found[sources[0]]
    return found


def _keeps_elements(node: fx.Node) -> bool:
    value, source = node.meta["val"], node.all_input_nodes[0].meta["val"]
    return isinstance(value, torch.Tensor) and value.numel() == source.numel() and value.dtype == source.dtype


def tensor_parallel_regions(program: Program, num_ranks: int) -> tuple[TensorParallelRegion, ...]:
    """The regions that can be cut over ``num_ranks`` ranks, in program order; no parameter is in two."""
    known = _known_regions.setdefault(program, {})
    if num_ranks not in known:
        known[num_ranks] = _find_regions(program, num_ranks)
    return known[num_ranks]


# One plan asks for them again and again: to place weights, to share the stream between them, to recompute in them.
_known_regions: WeakKeyDictionary[Program, dict[int, tuple[TensorParallelRegion, ...]]] = WeakKeyDictionary()


def _find_regions(program: Program, num_ranks: int) -> tuple[TensorParallelRegion, ...]:
    weights = weights_of(program)
    uses = _product_uses(program, weights)
    places = {node: place for place, node in enumerate(program.graph.nodes)}
    found: list[TensorParallelRegion] = []
    taken: set[str] = set()
    for node in forward_ops(program):
        if _weight(node, weights) is None:
            continue
        try:
            region = _Search(program, weights, uses, num_ranks).run(node, places)
        except _NoRegionError:
            continue
        if not taken & set(region.placements):
            taken |= set(region.placements)
            found.append(region)
    return tuple(found)


def _weight(node: fx.Node, weights: Mapping[fx.Node, str]) -> int | None:
    """Return the tensor argument of a product that is its weight; None for other ops and products of activations."""
    if node.target not in PRODUCTS:
        return None
    args = tensor_args(node)
    held = [i for i in (len(args) - 2, len(args) - 1) if args[i] in weights]
    return held[0] if len(held) == 1 else None


def _product_uses(program: Program, weights: Mapping[fx.Node, str]) -> dict[str, int]:
    """Count the forward ops that use each parameter, apart from views of it."""
    uses: dict[str, int] = {}
    for node in forward_ops(program):
        if node not in weights:
            for source in node.all_input_nodes:
                if source in weights:
                    uses[weights[source]] = uses.get(weights[source], 0) + 1
    return uses


class _Search:
    """Follows one cut backward."""

    def __init__(
        self, program: Program, weights: Mapping[fx.Node, str], uses: Mapping[str, int], num_ranks: int
    ) -> None:
        self.weights, self.uses, self.num_ranks = weights, uses, num_ranks
        self.places: Mapping[fx.Node, int] = {}
        self.row_place = 0
        self.inputs = {program.nodes[i.node] for i in program.inputs}
        self.columns: list[fx.Node] = []
        self.cut: dict[fx.Node, Placement] = {}
        self.placements: dict[str, Placement] = {}

    def run(self, row: fx.Node, places: Mapping[fx.Node, int]) -> TensorParallelRegion:
        """Find the region that ends with a row-parallel product.

        Parameters
        ----------
        places : of all nodes in program order. An op after the product is not in the region.

        Raises
        ------
        _NoRegionError
            If there is none.
        """
        at = _weight(row, self.weights)
        args = tensor_args(row)
        assert at is not None
        self.places, self.row_place = places, places[row]
        activation = len(args) * 2 - 3 - at
        for choice in choices(axes_of(row), self.num_ranks):
            dims = axes_of(row).operands
            summed = choice.factor is not None and not any(
                choice.factor in f for f in axes_of(row).results[0]
            )
            if summed and any(choice.factor in f for f in dims[at]):
                self._follow(args[activation], choice.operands[activation])
                self.param(args[at], choice.operands[at])
                break
        else:
            raise _NoRegionError
        if not self.columns or len(set(self.columns)) != len(self.columns):
            raise _NoRegionError
        self._used_nowhere_else(row)
        between = frozenset(self.cut) - set(self.columns)
        return TensorParallelRegion(tuple(self.columns), row, between, dict(self.placements))

    def _follow(self, node: fx.Node, placement: Placement) -> None:
        """Cut the op that computes a node so that the node comes out in a placement."""
        if not isinstance(placement, Shard):
            return
        if node in self.cut:
            if self.cut[node] != placement:
                raise _NoRegionError
            return
        if node in self.weights:
            self.param(node, placement)
            return
        if node in self.inputs or node.meta["phase"] != "forward":
            raise _NoRegionError
        self._not_used_later(node)
        self.cut[node] = placement
        if node.target is operator.getitem:
            parent, index = node.args
            assert isinstance(parent, fx.Node)
            assert isinstance(index, int)
            self._follow_result(parent, index, placement)
            return
        choice = _choice(node, 0, placement, self.num_ranks)
        at = _weight(node, self.weights)
        if at is not None:
            self._column(node, choice, at)
            return
        for source, need in zip(tensor_args(node), choice.operands, strict=True):
            self._follow(source, need)

    def _follow_result(self, parent: fx.Node, index: int, placement: Placement) -> None:
        choice = _choice(parent, index, placement, self.num_ranks)
        if parent in self.cut:
            return
        self.cut[parent] = placement
        for source, need in zip(tensor_args(parent), choice.operands, strict=True):
            self._follow(source, need)

    def _column(self, node: fx.Node, choice: Choice, at: int) -> None:
        if not isinstance(choice.operands[at], Shard):
            raise _NoRegionError
        args = tensor_args(node)
        activation = len(args) * 2 - 3 - at
        # A cut of the rows of the activation, or of the batch of a product, is not a cut of the columns.
        if isinstance(choice.operands[activation], Shard):
            raise _NoRegionError
        self.columns.append(node)
        self.param(args[at], choice.operands[at])
        if len(args) == 3 and isinstance(choice.operands[0], Shard):
            self.param(args[0], choice.operands[0])

    def param(self, node: fx.Node, placement: Placement) -> None:
        """Carry a placement through views back to the parameter."""
        path = self.weights.get(node)
        if path is None or self.uses.get(path, 0) != 1:
            raise _NoRegionError
        while node.op != "placeholder":
            choice = _choice(node, 0, placement, self.num_ranks)
            (node,) = tensor_args(node)
            placement = choice.operands[0]
        if self.placements.setdefault(path, placement) != placement:
            raise _NoRegionError

    def _not_used_later(self, node: fx.Node) -> None:
        """End a search that `_used_nowhere_else` would refuse, before it follows the stream through all layers."""
        if any(self.places[user] > self.row_place and _forward_users(user) for user in node.users):
            raise _NoRegionError

    def _used_nowhere_else(self, row: fx.Node) -> None:
        known = set(self.cut) | {row}
        # Queries and keys may be normalised over all heads: a sum of one number of each token.
        num_ops = _NORM_OPS if any(node.target in _SOFTMAX | FUSED_ATTENTION for node in self.cut) else 0
        for node in self.cut:
            for user in node.users:
                if user not in known and _forward_users(user) and not _comes_back(user, known, num_ops):
                    raise _NoRegionError


def _choice(node: fx.Node, index: int, placement: Placement, num_ranks: int) -> Choice:
    """Return the choice of an op in which one of its results has a given placement."""
    axes = axes_of(node)
    if index >= len(axes.results) or len(list(tensors_of(node))) != len(axes.results):
        raise _NoRegionError
    blocks = blocks_at(axes, axes.results[index], placement)
    for choice in choices(axes, num_ranks, tuple(blocks)):
        if choice.factor is not None and choice.results[index] == placement:
            return choice
    raise _NoRegionError


def _comes_back(node: fx.Node, known: set[fx.Node], num_ops: int) -> bool:
    """Return whether a value reaches only known ops, through at most so many ops: the divisor of a norm over cut
    features."""
    if node in known or not num_ops:
        return node in known
    users = [user for user in node.users if _forward_users(user)]
    return bool(users) and all(_comes_back(user, known, num_ops - 1) for user in users)


def _forward_users(node: fx.Node) -> bool:
    """Return whether the forward pass needs an op; a result that only the backward pass takes does not count."""
    if node.op != "call_function" or node.meta["phase"] != "forward":
        return False
    return node.target is not operator.getitem or any(_forward_users(u) for u in node.users)


def attention_core(region: TensorParallelRegion) -> frozenset[fx.Node]:
    """The ops from the scores (query-key product) to the weights that multiply the values, both within.

    The product with the values is not among them: its result is what the next layer keeps anyway. A fused
    attention kernel keeps no scores and has no core.
    """
    softmaxes = [n for n in region.between if n.target in _SOFTMAX]
    before = _reach(softmaxes, region.between, forward=False)
    after = _reach(softmaxes, region.between, forward=True)
    scores = [n for n in before if n.target in PRODUCTS]
    context = [n for n in after if n.target in PRODUCTS]
    leading = _reach(scores, region.between, forward=True)
    trailing = _reach(context, region.between, forward=False)
    return frozenset((leading & trailing) - set(context))


def _reach(starts: list[fx.Node], within: frozenset[fx.Node], *, forward: bool) -> set[fx.Node]:
    found: set[fx.Node] = set()
    stack = list(starts)
    while stack:
        node = stack.pop()
        if node in found or node not in within:
            continue
        found.add(node)
        stack += list(node.users) if forward else node.all_input_nodes
    return found


def lookups(program: Program) -> dict[str, fx.Node]:
    """Embedding tables that a batch input indexes, by path, with the look-up.

    Tables of fixed indices (positions) are not among them.
    """
    weights = weights_of(program)
    batch = {program.nodes[i.node] for i in program.inputs if i.kind == "batch"}
    found: dict[str, fx.Node] = {}
    for node in forward_ops(program):
        if node.target is aten.embedding.default:
            table, indices = tensor_args(node)[:2]
            while indices.op == "call_function" and len(indices.all_input_nodes) == 1:
                (indices,) = indices.all_input_nodes
            if indices in batch and table in weights:
                found[weights[table]] = node
    return found


def logits(program: Program) -> dict[str, fx.Node]:
    """Weights of products whose result goes through views only into the loss's softmax, with the product.

    Of a program without a loss: those whose result goes through views only to what it returns.
    """
    weights = weights_of(program)
    ends = [tensor_args(n)[0] for n in forward_ops(program) if n.target is aten._log_softmax.default]
    returned = zip(program.outputs, output_args(program.graph), strict=True)
    ends += [node for output, node in returned if output.kind == "value" and node is not None]
    found: dict[str, fx.Node] = {}
    for source in ends:
        while source.target not in PRODUCTS and len(tensor_args(source)) == 1:
            (source,) = tensor_args(source)
        at = _weight(source, weights)
        if at is not None:
            found[weights[tensor_args(source)[at]]] = source
    return found


def expert_weights(program: Program, num_ranks: int) -> dict[str, Placement]:
    """Placements that deal the experts of mixtures out over ``num_ranks`` ranks, by parameter path.

    An expert weight is one operand of a batched product whose batch dimension it has: every expert multiplies
    its own tokens by its own matrix.
    """
    weights = weights_of(program)
    uses = _product_uses(program, weights)
    found: dict[str, Placement] = {}
    for node in forward_ops(program):
        at = _weight(node, weights)
        if at is None or node.target is not aten.bmm.default:
            continue
        search = _Search(program, weights, uses, num_ranks)
        try:
            choice = _choice(node, 0, Shard(0), num_ranks)
            search.param(tensor_args(node)[at], choice.operands[at])
        except _NoRegionError:
            continue
        found |= search.placements
    return found
