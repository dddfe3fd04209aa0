"""Which blocks of a model look equal, but for the values of their parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

_MIN_BLOCKS = 3
_PLAIN = (type(None), bool, int, float, complex, str, torch.dtype, torch.device)
# Hooks are part of what a module does, so they are compared; these are described by themselves.
_STATE = {"_parameters", "_buffers", "_modules"}


def repeated_blocks(module: nn.Module) -> dict[str, nn.Module]:
    """The largest set of blocks that look equal but for their parameters, by path; empty if fewer than three.

    All lie in one list, and none holds another.
    """
    found: list[dict[str, nn.Module]] = []
    for path, parent in module.named_modules():
        if not isinstance(parent, nn.ModuleList | nn.Sequential):
            continue
        equal: dict[Any, dict[str, nn.Module]] = {}
        for name, child in parent.named_children():
            equal.setdefault(description(child), {})[f"{path}.{name}" if path else name] = child
        found += equal.values()
    found = [blocks for blocks in found if len(blocks) >= _MIN_BLOCKS]
    return max(found, key=lambda blocks: len(blocks) * _num_modules(blocks), default={})


def _num_modules(blocks: Mapping[str, nn.Module]) -> int:
    return sum(1 for _ in next(iter(blocks.values())).modules())


def description(module: nn.Module, without: str = "") -> Any:
    """The type and attributes of a module and of those in it, except the values of parameters and buffers.

    Parameters
    ----------
    without : an attribute of the module itself that is left out.
    """
    own = {k: v for k, v in vars(module).items() if k not in _STATE and k != without}
    tensors = [
        (name, kind, tuple(t.shape), t.dtype, t.requires_grad)
        for kind in ("_parameters", "_buffers")
        for name, t in getattr(module, kind).items()
        if t is not None
    ]
    children = tuple((name, description(child)) for name, child in module.named_children())
    return type(module), frozen(own), tuple(tensors), children


def frozen(value: Any, within: tuple[int, ...] = ()) -> Any:
    """A value to compare by: plain values as they are, all else by identity.

    Parameters
    ----------
    within : identities of the containers that the value lies in.
    """
    if id(value) in within:
        return "itself", within.index(id(value))
    if isinstance(value, dict):
        return tuple((k, frozen(v, (*within, id(value)))) for k, v in value.items())
    if isinstance(value, list | tuple):
        return type(value).__name__, tuple(frozen(v, (*within, id(value))) for v in value)
    if isinstance(value, float):
        return "float", value.hex()  # 0.0 and -0.0 are not the same
    if isinstance(value, complex):
        return "complex", value.real.hex(), value.imag.hex()
    if is_plain(value):
        return type(value).__name__, value
    if isinstance(value, set | frozenset) and not value:
        return ()
    return id(value)


def is_plain(value: Any) -> bool:
    """Whether a value says all that there is to know of it."""
    return isinstance(value, _PLAIN)
