"""Floating-point operations of a graph's nodes, by the formulas of PyTorch's flop counter."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import torch
from torch import fx
from torch.utils.flop_counter import flop_registry

from trainyard.program.program import Program

aten = torch.ops.aten

# PyTorch counts attention on GPUs under these names and has no formula for the CPU's.
_COUNTED_AS: dict[Any, Any] = {
    aten._scaled_dot_product_flash_attention_for_cpu: aten._scaled_dot_product_flash_attention,
    aten._scaled_dot_product_flash_attention_for_cpu_backward: (
        aten._scaled_dot_product_flash_attention_backward
    ),
}


def node_flops(node: fx.Node) -> int:
    """Floating-point operations of one execution of a node; a multiply and an add are two.

    Only ops that multiply matrices count: products, convolutions, attention. For all others, which are bound
    by memory, the result is 0.

    Parameters
    ----------
    node : of a captured or a lowered graph; its ``meta["val"]`` and those of its arguments give the shapes.
    """
    formula = _formula(node.target)
    if formula is None:
        return 0
    return _count(node.target, _shapes(node.args), _shapes(node.kwargs), _shapes(node.meta["val"]))


def is_fused_attention(node: fx.Node) -> bool:
    """Return whether a node is attention in one kernel, or the backward pass of it."""
    return getattr(node.target, "overloadpacket", None) in _COUNTED_AS


def program_flops(program: Program) -> int:
    """Floating-point operations of one training step on ``program.num_rows`` rows."""
    return sum(node_flops(node) for node in program.graph.nodes if node.op == "call_function")


def _formula(target: Any) -> Any:
    packet = getattr(target, "overloadpacket", None)
    return flop_registry.get(_COUNTED_AS.get(packet, packet))


@lru_cache(maxsize=1 << 14)
def _count(target: Any, args: tuple[Any, ...], kwargs: tuple[tuple[str, Any], ...], result: Any) -> int:
    return int(_formula(target)(*args, **dict(kwargs), out_val=result))


def _shapes(value: Any) -> Any:
    """The value with tensors as their sizes, so that it can be compared and hashed."""
    if isinstance(value, fx.Node):
        value = value.meta.get("val")
    if isinstance(value, torch.Tensor):
        return tuple(value.shape)
    if isinstance(value, Mapping):
        return tuple((key, _shapes(v)) for key, v in value.items())
    return tuple(_shapes(v) for v in value) if isinstance(value, list | tuple) else value
