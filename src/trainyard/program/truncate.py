"""Truncation: the same model with fewer of its repeated blocks, to learn a block's costs in a fraction of the time."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace

from torch import nn

from trainyard.program.blocks import block_path
from trainyard.program.model import Model


@dataclass(frozen=True, eq=False)
class Truncated:
    """A model with only the first blocks of its longest list of equal blocks.

    Attributes
    ----------
    model : the shorter model.
    path : of the list (``blocks``); empty if it is the model itself.
    kept, count : blocks in the shorter and in the whole model; 0 if the model repeats nothing and is unchanged.
    """

    model: Model
    path: str
    kept: int
    count: int

    def block(self, index: int) -> str:
        """Path of a block of the list."""
        return _item(self.path, index)


def truncate(model: Model, kept: int = 3) -> Truncated:
    """Keep ``kept`` blocks of the longest list of blocks of one class and equal parameter shapes.

    Only lists whose items are what `block_path` calls blocks count: in a list inside another list's item they are not.
    The module is copied without its values where it is on the meta device; a model without such a list of more
    than ``kept`` blocks is returned as it is.
    """
    found = max(_lists(model.module), key=lambda item: len(item[1]), default=None)
    if found is None or len(found[1]) <= kept:
        return Truncated(model, "", 0, 0)
    path, blocks = found
    shorter = _without(model.module, blocks, kept)
    return Truncated(replace(model, module=shorter), path, kept, len(blocks))


def _lists(module: nn.Module) -> list[tuple[str, nn.ModuleList | nn.Sequential]]:
    return [
        (path, child)
        for path, child in module.named_modules()
        if isinstance(child, nn.ModuleList | nn.Sequential)
        and block_path(_item(path, 0)) == _item(path, 0)
        and _all_equal(child)
    ]


def _item(path: str, index: int) -> str:
    return f"{path}.{index}" if path else str(index)


def _all_equal(blocks: nn.ModuleList | nn.Sequential) -> bool:
    kinds = {(type(b), tuple((n, p.shape) for n, p in b.named_parameters())) for b in blocks}
    return len(kinds) == 1 and bool(next(iter(kinds))[1])


def _without(module: nn.Module, blocks: nn.ModuleList | nn.Sequential, kept: int) -> nn.Module:
    """A deep copy that shares nothing but leaves the dropped blocks out."""
    first = list(blocks)[:kept]
    # A class of its own may have a forward of its own.
    shorter = type(blocks)(*first) if isinstance(blocks, nn.Sequential) else nn.ModuleList(first)
    return copy.deepcopy(module, {id(blocks): copy.deepcopy(shorter)})
