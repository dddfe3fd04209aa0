"""The signature of an op: ops take the same time if function, shapes, types and layouts are the same."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

__all__ = ["op_signature"]

_MAX_VIEWS = 4
# Its salt, offsets and the shape of the whole say which elements are dropped, not how long that takes.
_BY_OPERANDS_ONLY = frozenset({"trainyard.dropout.default"})
# Of a draw, likewise, its shape, distribution and type.
_DRAW = "trainyard.draw.default"


def op_signature(node: fx.Node) -> str:
    """A text that is equal for ops that take equally long.

    Holds the op, the shape and type of every tensor operand, the views through which an operand was made (a
    transposed matrix is read in another order than a plain one), and the other arguments.
    """
    name = str(node.target) if isinstance(node.target, torch._ops.OpOverload) else node.target.__name__  # type: ignore[union-attr]
    if name in _BY_OPERANDS_ONLY:
        return f"{name}({', '.join(_operand(n) for n in node.all_input_nodes)})"
    if name == _DRAW:
        return f"{name}({_describe(node.args[0])}, {node.args[2]}, dtype={node.kwargs['dtype']})"
    parts = [_describe(a) for a in node.args]
    parts += [
        f"{key}={_describe(value)}"
        for key, value in node.kwargs.items()
        if key not in ("device", "pin_memory")
    ]
    return f"{name}({', '.join(parts)})"


def _describe(value: Any) -> str:
    if isinstance(value, fx.Node):
        return _operand(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_describe, value))}]"
    return str(value)


def _operand(node: fx.Node) -> str:
    value = node.meta.get("val")
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype)[6:]}{list(value.shape)}{_views(node)}"
    return "tuple" if isinstance(value, tuple | list) else "number"


def _views(node: fx.Node) -> str:
    names: list[str] = []
    while len(names) < _MAX_VIEWS and isinstance(node.target, torch._ops.OpOverload) and node.target.is_view:
        if node.target is not torch.ops.aten.view.default:
            names.append(node.target.overloadpacket.__name__)
        source = node.args[0]
        if not isinstance(source, fx.Node):
            break
        node = source
    return "".join(f"<{name}" for name in names)
