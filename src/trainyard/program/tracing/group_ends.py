"""Ends of the rows of each group, as models compute them from the group of each row.

The groups are numbered from 0. The rows of a group end where those of it and of all groups before it are counted.
"""

from __future__ import annotations

import math
import operator
from typing import Any

import torch
from torch import fx

from trainyard.program.algebra.lookups import lookup_of
from trainyard.program.algebra.rules import tensor_args
from trainyard.program.nodes import argument
from trainyard.program.tracing.numbers import (
    SAME_NUMBERS,
    copied,
    counts_up,
    is_ascending,
    keeps_numbers,
    num_places,
)

__all__ = ["groups_behind", "source_of"]

aten = torch.ops.aten

_CONSTANTS = {0: aten.zeros.default, 1: aten.ones.default}


def groups_behind(ends: fx.Node) -> fx.Node | None:
    """Find the numbers of groups, one for each row in any order, of which the ends follow; None if none are known.

    Parameters
    ----------
    ends : whole numbers [groups].
    """
    ends = copied(ends)
    num_groups = int(ends.meta["val"].shape[0])
    is_sum = ends.target is aten.cumsum.default
    found = _counted(copied(ends.args[0]), num_groups) if is_sum else _searched(ends)
    return found if found is not None and num_places(source_of(found)) is not None else None


def source_of(numbers: fx.Node) -> fx.Node:
    """Find what numbers are, whatever their order, shape and type."""
    args: Any = numbers.args
    if keeps_numbers(numbers):
        return source_of(args[0])
    if numbers.target is operator.getitem and args[1] == 0 and is_ascending(args[0]):
        return source_of(args[0].args[0])
    return source_of(args[0]) if _is_taken_in_order(numbers) else numbers


def _counted(counts: fx.Node, num_groups: int) -> fx.Node | None:
    """Numbers that are counted: how many are 0, how many are 1, and so on."""
    args: Any = counts.args
    if counts.target is aten.histc.default:
        numbers, limits = copied(args[0]), [num_groups - 1]
        if (num_places(source_of(numbers)) or math.inf) <= num_groups:
            limits.append(num_groups)  # which the last bin has, too
        is_known = num_groups > 1 and args[1:] in [(num_groups, 0, limit) for limit in limits]
        return numbers if is_known else None
    if counts.target is aten.sum.dim_IntList:
        return _compared(copied(args[0]), args[1]) if not argument(counts, "keepdim") else None
    if counts.target in (aten.scatter_add.default, aten.index_add.default):
        table, _, numbers, values = args
        is_counting = _is(table, 0) and _is(values, 1) and argument(counts, "alpha") in (None, 1)
        return copied(numbers) if is_counting and numbers.meta["val"].dim() == 1 else None
    return None


def _compared(equal: fx.Node, summed: Any) -> fx.Node | None:
    """Numbers that are compared with all groups, and the results summed over the numbers."""
    args: Any = equal.args
    if equal.target is not aten.eq.Tensor:
        return None
    numbers, every = args
    dims = len(equal.meta["val"].shape)
    is_column = numbers.target is aten.unsqueeze.default and numbers.args[1] in (-1, dims - 1)
    is_of_all = sorted(d % dims for d in summed) == list(range(dims - 1))
    is_with_all = counts_up(every) and every.meta["val"].dim() == 1
    return copied(numbers.args[0]) if is_column and is_of_all and is_with_all else None


def _searched(ends: fx.Node) -> fx.Node | None:
    """Sorted numbers in which each group is looked up."""
    args: Any = ends.args
    if ends.target is aten.searchsorted.Tensor:
        numbers, groups = copied(args[0]), copied(args[1])
    elif ends.target is aten.bucketize.Tensor:
        groups, numbers = copied(args[0]), copied(args[1])
    else:
        return None
    is_after = bool(argument(ends, "right")) or argument(ends, "side") == "right"
    is_known = groups.meta["val"].dim() == 1 and counts_up(groups, first=0 if is_after else 1)
    return numbers if is_known and _is_sorted(numbers) else None


def _is_sorted(numbers: fx.Node) -> bool:
    args: Any = numbers.args
    if numbers.target is operator.getitem:
        return bool(args[1] == 0 and is_ascending(args[0]))
    return _is_taken_in_order(numbers)


def _is_taken_in_order(numbers: fx.Node) -> bool:
    """Whether numbers are looked up by the numbers that their own sort gave."""
    lookup = lookup_of(numbers)
    if lookup is None or lookup.effect != "reads":
        return False
    table, order = tensor_args(numbers)
    args: Any = order.args
    if order.target is not operator.getitem or args[1] != 1:
        return False
    return is_ascending(args[0]) and args[0].args[0] is table


def _is(node: fx.Node, value: int) -> bool:
    """Whether a tensor has a number everywhere."""
    while node.target in SAME_NUMBERS:
        node = node.args[0]  # type: ignore[assignment]
    return node.target is _CONSTANTS[value] or (
        node.target is aten.full.default and bool(node.args[1] == value)
    )
