"""Derive the kernels of a server's step, for any number of tokens, from the forward graph of a model.

The graph is captured once, for one sequence of a length that divides no size of the model: so every dimension that it
divides counts tokens. It is cut over the devices of a tensor-parallel group by level 1's algebra, as Megatron cuts it.
Servers fuse what lies between products: ops that only read and write are one kernel where they follow each other, and
products of the same operand (queries, keys and values; gate and up) are one product. The grouped products of a mixture
of experts are one kernel, which fetches the tokens of each expert itself.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import fx

from trainyard.cost.ops import is_free
from trainyard.job.lower.cut import Cut, cut, param_stages
from trainyard.job.plan import Plan
from trainyard.job.remesh import TENSOR
from trainyard.job.transformer import FUSED_ATTENTION, PRODUCTS
from trainyard.program import spmd
from trainyard.program.algebra.rules import args_of, tensor_args
from trainyard.program.grouped_product import GROUPED_PRODUCT
from trainyard.program.placement import Shard
from trainyard.program.program import Program, output_args, tensor_of, tensors_of
from trainyard.serve.costs.kernels import Attention, Experts, Product, StepGraph
from trainyard.serve.costs.split_plan import tensor_shards
from trainyard.serve.errors import ServeError

__all__ = ["stage_graphs", "step_graph", "with_shared_experts"]

aten = torch.ops.aten

_LOOKS_UP = {aten.embedding.default, spmd.embed_part}
_COPIES = {aten.clone.default, aten.expand.default, aten.contiguous.default, aten.constant_pad_nd.default}


def step_graph(program: Program, plan: Plan | None = None, *, expert_parallel: bool = False) -> StepGraph:
    """The kernels that one device of a stage launches, if it had all layers.

    Parameters
    ----------
    program : the result of `trainyard.serve.costs.forward_graph.forward_program`.
    plan : of `trainyard.serve.costs.split_plan.split_plan` for this program; by default one device has all of it.
    expert_parallel : whether each device of a stage holds whole experts, instead of a slice of every expert.

    Raises
    ------
    ServeError
        If the experts cannot be dealt out, or the model is no transformer with fused attention.
    """
    num_devices = 1 if plan is None else plan.mesh.size(TENSOR)
    graph = _reader(program, plan).read()
    return _with_dealt_experts(program.name, graph, num_devices) if expert_parallel else graph


def stage_graphs(program: Program, plan: Plan, *, expert_parallel: bool = False) -> tuple[StepGraph, ...]:
    """The kernels that one device of each stage launches: those of its own layers.

    The first stage has the look-up of tokens, the last one the final norm and the LM head. Weights that several stages
    use (tied embeddings) are in each of them. Parameters and errors are those of `step_graph`.
    """
    starts = [stage.start for stage in plan.stages[1:]]
    if not starts:
        return (step_graph(program, plan, expert_parallel=expert_parallel),)
    reader = _reader(program, plan)
    nodes = [reader.program.addresses.find(start)[0] for start in starts]
    parts = cut(reader.program, tuple(node.name for node in nodes))
    graphs = [reader.read(parts, stage) for stage in range(len(plan.stages))]
    if expert_parallel:
        graphs = [_with_dealt_experts(program.name, each, plan.mesh.size(TENSOR)) for each in graphs]
    return tuple(graphs)


def with_shared_experts(name: str, graph: StepGraph, num_ranks: int, num_devices: int) -> StepGraph:
    """Return the graph of a device if data-parallel ranks share the experts of mixtures.

    Parameters
    ----------
    name : of the model.
    graph : of a rank with all experts.
    num_ranks : of attention.
    num_devices : of a rank, which have a part of every expert.

    Raises
    ------
    ServeError
        If it has no mixture, or the experts cannot be dealt out.
    """
    if not graph.experts:
        raise ServeError(f"{name} has no mixture of experts that ranks could share; use replicas")
    dealt = _with_dealt_experts(name, graph, num_devices, num_ranks)
    others = sum(
        count * each.num_experts * each.width * each.hidden * (3 if each.is_gated else 2)
        for each, count in graph.experts
    )
    return replace(dealt, num_weights=graph.num_weights - others + others // num_ranks)


def _with_dealt_experts(name: str, graph: StepGraph, num_devices: int, num_ranks: int = 1) -> StepGraph:
    """The same with whole experts on each device of all ranks; a device adds up the same as before."""
    for each, _ in graph.experts:
        if each.num_experts % (num_devices * num_ranks):
            other = ", or leave out expert_parallel" if num_ranks == 1 else ""
            raise ServeError(
                f"{name}: {each.num_experts} experts cannot be dealt out to {num_devices * num_ranks} devices; use a "
                f"number that divides them{other}"
            )
    dealt = tuple(
        (each._replace(width=each.width * num_devices, num_devices=num_devices * num_ranks), count)
        for each, count in graph.experts
    )
    return replace(graph, experts=dealt)


def _reader(program: Program, plan: Plan | None) -> _Reader:
    """Read a program as one device of a stage has it."""
    if plan is None or plan.mesh.size(TENSOR) == 1:
        return _Reader(program, 1)
    sharded = tensor_shards(program, plan)
    is_gathered = any(isinstance(each, Shard) for each in sharded.outputs)
    return _Reader(sharded.program, plan.mesh.size(TENSOR) if is_gathered else 1)


class _Reader:
    """Reads one device's graph.

    Parameters
    ----------
    num_parts : of its result, which lie on as many devices and are put together.
    """

    def __init__(self, program: Program, num_parts: int) -> None:
        self.program, self.num_parts = program, num_parts
        batch = [program.nodes[i.node] for i in program.inputs if i.kind == "batch"]
        self.length = next(int(tensor_of(n).shape[1]) for n in batch if tensor_of(n).dim() > 1)
        self.varies = self._depends_on(batch)
        self.all_ops = [
            node for node in program.graph.nodes if node in self.varies and not self._is_passed(node)
        ]
        self.ops = self.all_ops
        self.depth: dict[fx.Node, int] = {}
        for node in self.ops:
            before = [self.source(each) for each in node.all_input_nodes if each in self.varies]
            self.depth[node] = max((self.depth.get(n, 0) + _is_kernel(n) for n in before), default=0)

    def read(self, parts: Cut | None = None, stage: int = 0) -> StepGraph:
        """All that is launched, or what a stage launches."""
        hidden = next(self._per_token(node) for node in self.all_ops if node.target in _LOOKS_UP)
        params = self.program.params
        if parts is not None:
            using = param_stages(self.program, parts)
            params = tuple(entry for entry in params if stage in using[entry.path])
            self.ops = [node for node in self.all_ops if parts.stage_of[node] == stage]
        weights = [self.program.nodes[entry.node] for entry in params]
        return StepGraph(
            self._products(),
            self._attention(),
            tuple(sorted(Counter(self._pointwise()).items())),
            self._collectives(spmd.all_reduce),
            self._all_gathers(),
            hidden,
            sum(tensor_of(node).numel() for node in weights),
            self._experts(),
        )

    def source(self, node: fx.Node) -> fx.Node:
        """Return the op that computed a value, through views and copies."""
        while self._is_passed(node) and node.all_input_nodes:
            node = node.all_input_nodes[0]
        return node

    def _depends_on(self, batch: list[fx.Node]) -> set[fx.Node]:
        """Nodes that differ from step to step; the others are computed once, when the model is loaded."""
        found = set(batch)
        for node in self.program.graph.nodes:
            if node.op == "call_function" and found & set(node.all_input_nodes):
                found.add(node)
        return found - set(batch)

    def _is_passed(self, node: fx.Node) -> bool:
        """Whether a node moves nothing in a server's kernels: a view, a copy into another layout, rows of experts."""
        if node.op != "call_function":
            return False
        fetches = node.target is aten.index.Tensor and {user.target for user in node.users} == {
            GROUPED_PRODUCT
        }
        return fetches or is_free(node) or node.target in _COPIES

    def _per_token(self, node: fx.Node) -> int:
        """Elements of a node's result for each token."""
        return sum(self._count(tensor) for tensor in tensors_of(node))

    def _count(self, tensor: torch.Tensor) -> int:
        num = tensor.numel()
        if num % self.length:
            return 0  # it does not grow with the tokens
        if num % self.length**2 == 0:
            raise ServeError(
                f"{self.program.name}: a value of shape {tuple(tensor.shape)} grows with the square of a sequence; "
                "allowed is attention by torch.nn.functional.scaled_dot_product_attention"
            )
        return num // self.length

    def _products(self) -> tuple[tuple[Product, int], ...]:
        ends = {self.source(node) for node in output_args(self.program.graph) if node is not None}
        together: dict[tuple[fx.Node, bool], list[tuple[int, int]]] = defaultdict(list)
        for node in self.ops:
            if node.target in PRODUCTS and node.target is not GROUPED_PRODUCT:
                left, right = tensor_args(node)[-2:]
                if right in self.varies:
                    raise ServeError(
                        f"{self.program.name}: {node.meta['layer'] or 'a layer'} multiplies two values that depend on "
                        "the tokens; allowed are products with weights, and fused attention"
                    )
                width, columns = tensor_of(right).shape[-2:]
                together[self.source(left), node in ends].append((width, columns))
        found = [
            Product(parts[0][0], sum(columns for _, columns in parts), is_last)
            for (_, is_last), parts in together.items()
        ]
        return tuple(sorted(Counter(found).items()))

    def _attention(self) -> tuple[tuple[Attention, int], ...]:
        found = []
        for node in self.ops:
            if node.target in FUSED_ATTENTION:
                query, key, value, *masks = tensor_args(node)
                if not masks and not _is_causal(node):
                    raise ServeError(
                        f"{self.program.name}: a token sees tokens after it, so nothing of it can be in a cache; allowed "
                        "are models that write one token after the other, such as llama3-8b"
                    )
                num_heads, key_width = int(tensor_of(query).shape[1]), int(tensor_of(query).shape[3])
                latent, rotary = self._latent(key)
                found.append(
                    Attention(
                        num_heads,
                        self._num_kv_heads(key, key_width),
                        (key_width + self._width(value)) // 2,
                        max((_window(mask) for mask in masks), default=0),
                        latent,
                        rotary,
                    )
                )
        return tuple(sorted(Counter(found).items()))

    def _width(self, value: fx.Node) -> int:
        """Elements of a head of values, before they are filled up to the width of keys."""
        fewest = int(tensor_of(value).shape[-1])
        while value.target is not aten.constant_pad_nd.default and self._is_passed(value):
            value = value.all_input_nodes[0]
        return fewest if not self._is_passed(value) else int(tensor_of(value.all_input_nodes[0]).shape[-1])

    def _latent(self, key: fx.Node) -> tuple[int, int]:
        """Widths of what keys follow from: a vector that goes through a product, and elements that heads share."""
        joined = self.source(key)
        parts = tensor_args(joined) if joined.target is aten.cat.default else []
        behind = [_products_behind(part) for part in parts]
        if len(parts) != 2 or behind[0] == behind[1]:
            return 0, 0
        (expanding,) = behind[0]
        return int(tensor_of(tensor_args(expanding)[-1]).shape[-2]), int(tensor_of(parts[1]).shape[-1])

    def _experts(self) -> tuple[tuple[Experts, int], ...]:
        mixtures: dict[fx.Node, list[fx.Node]] = defaultdict(list)
        for node in self.ops:
            if node.target is GROUPED_PRODUCT:
                mixtures[self.source(tensor_args(node)[0])].append(node)
        found = []
        for products in mixtures.values():
            _, rows, weights = tensor_args(products[0])
            num_experts, hidden, _ = tensor_of(weights).shape
            width = tensor_of(tensor_args(products[-1])[2]).shape[1]
            found.append(
                Experts(num_experts, self._per_token(rows) // hidden, hidden, width, len(products) == 3)
            )
        return tuple(sorted(Counter(found).items()))

    def _num_kv_heads(self, key: fx.Node, width: int) -> int:
        """Heads before they are repeated for the queries that share them."""
        fewest = tensor_of(key).numel()
        while self._is_passed(key):
            key = key.all_input_nodes[0]
            fewest = min([fewest, *(tensor.numel() for tensor in tensors_of(key))])
        return fewest // (self.length * width)

    def _pointwise(self) -> Iterator[int]:
        """Elements that each fused kernel reads and writes for a token: what goes in and out of a group of ops."""
        group_of = self._groups()
        members: dict[fx.Node, list[fx.Node]] = defaultdict(list)
        for node, group in group_of.items():
            members[group].append(node)
        read_by_others = self._used_elsewhere(group_of)
        for group, nodes in members.items():
            read = {
                each: min(self._per_token(each), self._per_token(self.source(each)) or self._per_token(each))
                for node in nodes
                for each in node.all_input_nodes
                if each in self.varies and group_of.get(self.source(each)) is not group
            }
            looked_up = sum(self._per_token(node) for node in nodes if node.target in _LOOKS_UP)
            written = sum(self._per_token(node) for node in nodes if node in read_by_others)
            if num := sum(read.values()) + looked_up + written:
                yield num

    def _groups(self) -> dict[fx.Node, fx.Node]:
        """For each op between kernels, the first op of those that are fused with it."""
        parent: dict[fx.Node, fx.Node] = {}

        def root(node: fx.Node) -> fx.Node:
            while parent[node] is not node:
                node = parent[node]
            return node

        for node in self.ops:
            if _is_kernel(node):
                continue
            parent[node] = node
            for each in node.all_input_nodes:
                before = self.source(each)
                if before in parent and self.depth[before] == self.depth[node]:
                    parent[root(node)] = root(before)
        return {node: root(node) for node in parent}

    def _used_elsewhere(self, group_of: dict[fx.Node, fx.Node]) -> set[fx.Node]:
        found = {self.source(node) for node in output_args(self.program.graph) if node is not None}
        for node in self.all_ops:
            for each in node.all_input_nodes:
                before = self.source(each)
                if before in group_of and group_of.get(node) is not group_of[before]:
                    found.add(before)
        return found

    def _collectives(self, target: object) -> tuple[tuple[int, int], ...]:
        """Count collectives; those that follow the same kernels are one."""
        together: Counter[int] = Counter()
        for node in self.ops:
            if node.target is target:
                together[self.depth[node]] += self._per_token(node)
        return tuple(sorted(Counter(together.values()).items()))

    def _all_gathers(self) -> tuple[tuple[int, int], ...]:
        """Count the gathers of the result if devices have parts of it: the scores of all words for each sequence."""
        if self.num_parts == 1:
            return ()
        results = [node for node in output_args(self.program.graph) if node is not None]
        own = [node for node in results if self.source(node) in self.ops]
        return tuple((self._per_token(node) * self.num_parts, 1) for node in own)


def _is_kernel(node: fx.Node) -> bool:
    """Whether an op is launched by itself, and nothing is fused over it."""
    return node.target in PRODUCTS or node.target in FUSED_ATTENTION or node.target in spmd.COLLECTIVES


def _products_behind(node: fx.Node) -> set[fx.Node]:
    """The nearest products that a value follows from."""
    found: set[fx.Node] = set()
    stack = [node]
    while stack:
        each = stack.pop()
        if each.target in PRODUCTS:
            found.add(each)
        else:
            stack += each.all_input_nodes
    return found


def _is_causal(node: fx.Node) -> bool:
    """Whether fused attention is causal."""
    assert isinstance(node.target, torch._ops.OpOverload)
    names = [each.name for each in node.target._schema.arguments]
    given = dict(zip(names, args_of(node), strict=False)) | node.kwargs
    return bool(given.get("is_causal"))


def _window(mask: fx.Node) -> int:
    """Return the width of a sliding window, in tokens, from its mask; 0 if the mask has none."""
    seen, stack = {mask}, [mask]
    while stack:
        node = stack.pop()
        if node.target is aten.lt.Scalar:
            return int(args_of(node)[1])
        fresh = [each for each in node.all_input_nodes if each not in seen]
        seen.update(fresh)
        stack += fresh
    return 0
