"""Sequence parallelism and selective recomputation of attention.

Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models", MLSys 2023,
arXiv 2205.05198.

Fidelity: exact for where tensors lie and what is recomputed. Dropout masks are not kept at all (they are functions
of the element's position), so a layer keeps 32 s b h + 4 a s^2 b bytes instead of the paper's 34 s b h + 5 a s^2 b.
The gathered input of a column product is gathered again in the backward pass, as in section 4.2.2.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import fx

from trainyard.job.plan import Plan, PlanError
from trainyard.job.remesh import TENSOR
from trainyard.job.setting import Setting, Strategy
from trainyard.job.transformer import (
    PRODUCTS,
    TensorParallelRegion,
    attention_core,
    lookups,
    tensor_parallel_regions,
)
from trainyard.program.placement import Placement, Shard
from trainyard.program.program import Program

aten = torch.ops.aten

_SEQUENCE_DIM = 1


def sequence_parallel() -> Strategy:
    """Share positions of the residual stream, norms and dropouts over the tensor-parallel ranks (section 4.2.2).

    The all-reduce after each row-parallel product becomes a reduce-scatter along the sequence, and before each
    column-parallel product stands an all-gather: the same bytes travel, and what lies between is t times smaller.

    Returns
    -------
    Strategy
        It raises `PlanError` if the plan so far has no tensor axis, or the sequence does not divide.

    Examples
    --------
    >>> from trainyard.hardware.parse import parse_cluster
    >>> from trainyard.job.strategies.parallel.megatron import megatron
    >>> from trainyard.job.planning import make_setting
    >>> from trainyard.job.setting import apply
    >>> from trainyard.job.task import Task
    >>> from trainyard.zoo.registry import build
    >>> setting = make_setting(Task(build("gpt-tiny")), parse_cluster("1x2xA100-80G"))
    >>> steps = ("megatron", megatron(tensor=2)), ("sequence_parallel", sequence_parallel())
    >>> str(apply(steps, setting).placements["blocks.*:add"]["tensor"])
    'S1'
    """

    def strategy(setting: Setting, plan: Plan) -> Plan:
        program = setting.task.program(plan.rows_per_microbatch)
        num_ranks = plan.mesh.size(TENSOR)
        found = tensor_parallel_regions(program, num_ranks) if num_ranks > 1 else ()
        if not found:
            raise PlanError(
                "sequence_parallel shares what tensor parallelism leaves whole, and this plan has no tensor-parallel "
                f"blocks (tensor axis of {num_ranks}); put megatron before it, such as "
                "megatron(tensor=2)+sequence_parallel"
            )
        stream = _stream(program, found)
        _check_length(program, stream, num_ranks)
        wanted: dict[str, Placement] = dict.fromkeys(
            program.addresses.shortened(stream), Shard(_SEQUENCE_DIM)
        )
        why = (
            f"The residual stream ({len(stream)} tensors) is shared along the sequence by {num_ranks} ranks."
        )
        return replace(plan.with_placements(TENSOR, wanted), reasons=(*plan.reasons, why))

    return strategy


def selective_recompute() -> Strategy:
    """Recompute the core of attention, scores to dropped-out weights, and keep everything else (section 5).

    These are the largest tensors (5 a s^2 b bytes of a layer's s b h (34 + 5 a s / h)) and cheap to recompute.

    Returns
    -------
    Strategy
        It raises `PlanError` if the model has no attention.

    Examples
    --------
    >>> from trainyard.hardware.parse import parse_cluster
    >>> from trainyard.job.planning import make_setting
    >>> from trainyard.job.setting import apply
    >>> from trainyard.job.task import Task
    >>> from trainyard.zoo.registry import build
    >>> setting = make_setting(Task(build("gpt-tiny")), parse_cluster("1x1xA100-80G"))
    >>> plan = apply((("selective_recompute", selective_recompute()),), setting)
    >>> [name for name in sorted(plan.recomputed) if "softmax" in name or "dropout" in name]
    ['blocks.*.attention:_softmax', 'blocks.*.attention:dropout']
    """

    def strategy(setting: Setting, plan: Plan) -> Plan:
        program = setting.task.program(plan.rows_per_microbatch)
        attention = [region for region in tensor_parallel_regions(program, 1) if region.is_attention]
        if not attention:
            raise PlanError(
                f"{program.name} has no attention that selective_recompute could recompute; use sublinear instead"
            )
        core = [n for region in attention for n in attention_core(region)]
        why = f"The core of {len(attention)} attention blocks ({len(core)} ops) is recomputed."
        if not core:
            why = f"The fused kernels of {len(attention)} attention blocks keep no scores: nothing is recomputed."
        again = program.addresses.shortened(core)
        return replace(plan.with_recomputed(again), reasons=(*plan.reasons, why))

    return strategy


def _stream_shape(row: fx.Node) -> tuple[int, ...] | None:
    """Shape [rows, length, hidden] in which the result of a row-parallel product is added to the stream."""
    node = row
    while node.meta["val"].dim() != 3:
        views = [u for u in node.users if u.target is aten.view.default and u.meta["phase"] == "forward"]
        if not views:
            return None
        node = views[0]
    return tuple(node.meta["val"].shape)


def _stream(program: Program, found: tuple[TensorParallelRegion, ...]) -> list[fx.Node]:
    """Tensors between the tensor-parallel blocks, in both passes, from which propagation completes the rest."""
    shapes = {_stream_shape(region.row) for region in found} - {None}
    inside = {n.meta["position"] for region in found for n in (*region.columns, *region.between, region.row)}
    # The look-up itself is a sum over the parts of the table; what uses it is the first to have positions.
    first = {user for node in lookups(program).values() for user in node.users}
    sums = _sums_of_products(program)

    def is_wanted(node: fx.Node) -> bool:
        if node.op != "call_function" or node.meta["position"] in inside or _shape(node) not in shapes:
            return False
        if node.meta["phase"] == "forward":
            return node in first or _adds_two(node)
        # Nor is a gradient that is still to be summed over the ranks: it is left to what uses it.
        return node not in sums

    return [node for node in program.graph.nodes if is_wanted(node)]


def _shape(node: fx.Node) -> tuple[int, ...] | None:
    value = node.meta["val"]
    return tuple(value.shape) if isinstance(value, torch.Tensor) else None


def _adds_two(node: fx.Node) -> bool:
    terms = [a for a in node.all_input_nodes if a.op == "call_function"]
    return node.target is aten.add.Tensor and [_shape(t) for t in terms] == [_shape(node)] * 2


def _sums_of_products(program: Program) -> set[fx.Node]:
    """Gradients that are products' results, in another shape or added to others."""
    found: set[fx.Node] = set()
    for node in program.graph.nodes:
        if node.op != "call_function" or node.meta["phase"] != "backward":
            continue
        passed = node.target in (aten.view.default, aten.add.Tensor, aten.clone.default)
        if node.target in PRODUCTS or (passed and not found.isdisjoint(node.all_input_nodes)):
            found.add(node)
    return found


def _check_length(program: Program, stream: list[fx.Node], num_ranks: int) -> None:
    for node in stream:
        length = node.meta["val"].shape[_SEQUENCE_DIM]
        if length % num_ranks:
            raise PlanError(
                f"a sequence of {length} positions of {program.name} does not divide over {num_ranks} tensor-parallel "
                "ranks; use a tensor size that divides it"
            )
