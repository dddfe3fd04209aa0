"""Seconds of one op on one device: the roofline, and what every other source of op times falls back to.

References
----------
S. Williams, A. Waterman, D. Patterson, "Roofline: An Insightful Visual Performance Model", CACM 2009.
"""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import fx

from trainyard.cost.signature import op_signature
from trainyard.hardware.devices import DeviceSpec
from trainyard.program import spmd
from trainyard.program.flops import is_fused_attention, node_flops
from trainyard.program.program import size_bytes, tensors_of

__all__ = [
    "BUFFER_OPS",
    "BufferOp",
    "OpSeconds",
    "Roofline",
    "Sources",
    "collective_of",
    "is_free",
    "op_bytes",
]

aten = torch.ops.aten

_COLLECTIVES: dict[object, str] = {op: op.__name__ for op in spmd.COLLECTIVES}

BufferOp = Literal["copy", "clone", "accumulate", "norm", "adamw", "sgd", "sgd_momentum"]
"""What the runtime does with flat buffers, outside of graphs. A clone is a copy into fresh memory, whose pages the
system may have to clear first."""

BUFFER_OPS: dict[str, int] = {
    "copy": 2,
    "clone": 2,
    "accumulate": 3,
    "norm": 1,
    "adamw": 7,
    "sgd": 3,
    "sgd_momentum": 5,
}
"""Reads and writes of every element by each of them."""

# Operand (by position) of which only as much is read as is written.
_LOOKED_UP: dict[Any, int] = {
    aten.embedding.default: 0,
    aten.gather.default: 0,
    aten.index_select.default: 0,
    aten.index.Tensor: 0,
    aten.slice.Tensor: 0,
    spmd.embed_part: 0,
    spmd.take_part: 0,
}
# The loss of a row reads the score of its class only; its gradient reads no score.
_UNREAD: dict[Any, int] = {aten.nll_loss_forward.default: 0, aten.nll_loss_backward.default: 1}


@dataclass(frozen=True)
class Sources:
    """Sources of the seconds of a plan's ops, on a machine where ops are measured.

    Ops that are the same function on operands of the same shapes count once.

    Attributes
    ----------
    num_measured : ops with measured seconds.
    estimated : why the others were not measured, by their signatures; their seconds are the roofline's.
    num_disturbed : of those that were measured: while other work had the cores.
    """

    num_measured: int
    estimated: Mapping[str, str]
    num_disturbed: int


class OpSeconds(ABC):
    """Seconds of ops: the interface that simulations ask.

    Ops on flat buffers are by default bound by memory bandwidth.
    """

    @abstractmethod
    def __call__(self, node: fx.Node, device: DeviceSpec) -> float:
        """Seconds of a graph node that is no communication, on a device."""

    def buffer_op_s(self, what: BufferOp, num_elements: int, element_bytes: int, device: DeviceSpec) -> float:
        """Seconds of an op of the runtime on a flat buffer."""
        num_bytes = BUFFER_OPS[what] * num_elements * element_bytes
        if num_bytes == 0:
            return 0.0
        return num_bytes / device.memory_rate_bytes_per_s(num_bytes) + device.launch_s

    def sources(self) -> Sources | None:
        """Return the sources of the seconds that were asked for so far; None if none are measured."""
        return None


class Roofline(OpSeconds):
    """The slower of computing and moving bytes, each at the rate a kernel of this size reaches.

    Parameters
    ----------
    tf32 : bool
        Whether float32 products may be computed in TensorFloat-32, as
        ``torch.backends.cuda.matmul.allow_tf32`` allows.
    """

    def __init__(self, tf32: bool = False) -> None:
        self.tf32 = tf32
        self._known: dict[tuple[str, DeviceSpec], float] = {}

    def __call__(self, node: fx.Node, device: DeviceSpec) -> float:
        if is_free(node):
            return 0.0
        key = (op_signature(node), device)
        if key not in self._known:
            self._known[key] = self._seconds(node, device)
        return self._known[key]

    def _seconds(self, node: fx.Node, device: DeviceSpec) -> float:
        num_bytes = op_bytes(node)
        seconds = num_bytes / device.memory_rate_bytes_per_s(num_bytes) if num_bytes else 0.0
        flops = node_flops(node)
        if flops:
            sustained = not is_fused_attention(node)
            rate = device.matmul_flops_per_s(flops, self._format(node), sustained=sustained)
            seconds = max(seconds, flops / rate)
        return seconds + device.launch_s

    def _format(self, node: fx.Node) -> str:
        dtype = next(tensors_of(node)).dtype
        if dtype == torch.bfloat16 or dtype == torch.float16:
            return str(dtype).removeprefix("torch.")
        return "tf32" if self.tf32 and dtype == torch.float32 else "float32"


def is_free(node: fx.Node) -> bool:
    """Return whether a node computes nothing on the device: a placeholder, a view, a part of a tuple, a number."""
    if node.op != "call_function" or node.target is operator.getitem or spmd.is_scalar(node):
        return True
    return is_view(node)


def is_view(node: fx.Node) -> bool:
    """Return whether a node's result shares the memory of its first operand."""
    if isinstance(node.target, torch._ops.OpOverload):
        return bool(node.target.is_view)
    if node.target is spmd.wait:
        return spmd.stays_where_it_arrives(node)
    # Rows of a contiguous tensor are contiguous where they lie.
    return node.target is spmd.take_part and spmd.is_in_place(node)


def op_bytes(node: fx.Node) -> int:
    """Bytes that an op reads and writes: every operand once, every result once; 0 for views.

    Parameters
    ----------
    node : fx.Node
        With ``meta["val"]``, as its operands.
    """
    if is_free(node):
        return 0
    written = sum(size_bytes(t) for t in tensors_of(node))
    looked_up, unread = _LOOKED_UP.get(node.target), _UNREAD.get(node.target)
    read = 0
    for source in node.all_input_nodes:
        if unread is not None and source is node.args[unread]:
            continue
        if looked_up is not None and source is node.args[looked_up]:
            read += written
            continue
        while source.target is aten.expand.default:  # a broadcast operand is read once
            source = _first(source)
        read += sum(size_bytes(t) for t in tensors_of(source))
    return read + written


def _first(node: fx.Node) -> fx.Node:
    source: Any = node.args[0]
    assert isinstance(source, fx.Node)
    return source


def collective_of(node: fx.Node) -> tuple[str, int] | None:
    """Kind and bytes of a collective of a sharded program, as `collective_cost` takes them; None for other ops."""
    kind = _COLLECTIVES.get(node.target)
    if kind is None:
        return None
    whole = node if kind in ("all_reduce", "all_gather") else node.all_input_nodes[0]
    return kind, sum(map(size_bytes, tensors_of(whole)))
