"""Ops on operands of several floating types that fail when they run, which tracing with fake tensors does not see."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache, reduce
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

__all__ = ["fails_by_type", "refused_types"]

_MOST_ELEMENTS = 2**20  # of an operand that is made up in its own size
_SHORTENED = 16  # each dimension of larger ones


def refused_types(op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """Why an op does not take operands of several types, as what follows the place where it is; "" if it does.

    Element-wise ops compute in the widest type. All others are tried on zeros, in small sizes where they are large. What
    the backward pass runs follows from the forward pass; its statistics may have other types than fake tensors say.
    """
    if torch._C._current_autograd_node() is not None:
        return ""
    leaves, structure = pytree.tree_flatten((tuple(args), dict(kwargs)))
    described = tuple((tuple(x.shape), x.dtype) if isinstance(x, Tensor) else _Plain(x) for x in leaves)
    types = dict.fromkeys(x[1] for x in described if isinstance(x, tuple) and x[1].is_floating_point)
    if len(types) < 2 or torch.Tag.pointwise in op.tags:
        return ""
    said = _tried(op, described, structure)
    if not said:
        return ""
    named = " and ".join(str(kind).removeprefix("torch.") for kind in types)
    return (
        f"gives {op.overloadpacket} tensors of {named}, which it does not take together ({said}). Convert them to one "
        "type before, as in x.to(weight.dtype)"
    )


def fails_by_type(run: Callable[..., Any], args: Any, kwargs: Any) -> bool:
    """Whether an op that failed runs where its operands have one floating type, the widest of theirs."""
    floating = [
        x for x in pytree.tree_leaves((args, kwargs)) if isinstance(x, Tensor) and x.is_floating_point()
    ]
    widest = reduce(torch.promote_types, (x.dtype for x in floating), torch.float32)
    if all(x.dtype == widest for x in floating):
        return False
    wide = pytree.tree_map(
        lambda x: x.to(widest) if isinstance(x, Tensor) and x.is_floating_point() else x, (args, kwargs)
    )
    try:
        run(*wide[0], **wide[1])
    except Exception:
        return False
    return True


class _Plain:
    """An argument that is no tensor, equal to others that are written the same."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Plain) and repr(self.value) == repr(other.value)

    def __hash__(self) -> int:
        return hash(repr(self.value))


@cache
def _tried(op: Any, described: tuple[Any, ...], structure: Any) -> str:
    """What PyTorch says of such operands, if it takes them in one type."""
    is_large = any(torch.Size(x[0]).numel() > _MOST_ELEMENTS for x in described if isinstance(x, tuple))
    with _disable_current_modes(), torch.autocast("cpu", enabled=False):
        args, kwargs = pytree.tree_unflatten([_made(x, is_large) for x in described], structure)
        try:
            op(*args, **kwargs)
        except Exception as error:
            return str(error).partition("\n")[0] if fails_by_type(op, args, kwargs) else ""
    return ""


def _made(described: Any, is_shortened: bool) -> Any:
    def size(number: int) -> int:
        return min(number, _SHORTENED) if is_shortened else number

    if isinstance(described, tuple):
        return torch.zeros([size(n) for n in described[0]], dtype=described[1])
    value = described.value
    return size(value) if type(value) is int else value
