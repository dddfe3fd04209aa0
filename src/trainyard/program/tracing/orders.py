"""Sorts of which each part of the rows may do its own: they put rows in order, and what follows puts them back.

A mixture sorts its tokens by expert, computes, and puts each result back at its token. Whatever the order is, the results
are the same. So each part of the batch may sort its own tokens, if whatever depends on the order either treats all places
alike, or goes back to the rows by the numbers that the sort gave. `mark_orders` finds such sorts.

A place is a position in the sorted order. Of each tensor that depends on a sort two things are followed: which of its
dimensions is in the sorted order, and whether its numbers count rows or places. These numbers count within the part.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import fx

from trainyard.program.algebra.indexing import COUNTERS
from trainyard.program.algebra.lookups import INDEX, lookup_of
from trainyard.program.algebra.rules import axes_of, tensor_args
from trainyard.program.grouped_product import GROUPED_GRADIENT, GROUPED_PRODUCT
from trainyard.program.nodes import add_op, argument
from trainyard.program.orders import OrderMark, mark, order_mark
from trainyard.program.tracing.alike import ALIKE, alike_dims, unlike_dims
from trainyard.program.tracing.numbers import SAME_NUMBERS, SORTS, counts_up

__all__ = ["mark_orders"]

aten = torch.ops.aten

_QUOTIENTS = {aten.floor_divide.default, aten.div.Tensor_mode, aten.div.Scalar_mode}
_REMAINDERS = {aten.remainder.Scalar, aten.fmod.Scalar}
# Any part of rows in ascending groups has its rows in ascending groups.
_TAKES_PARTS = {GROUPED_PRODUCT, GROUPED_GRADIENT}
_DRAWN_BY_POSITION = {torch.ops.trainyard.dropout.default, torch.ops.trainyard.draw.default}


class _DependsOnOrderError(Exception):
    """Something depends on the order of a sort."""


@dataclass(frozen=True)
class _OrderFacts:
    """What is known of a tensor that depends on a sort.

    Attributes
    ----------
    ordered : dimension that is in the sorted order; None if all are as in the model.
    counts : what its numbers count, if they may be used to look rows or places up.
    length : of the dimension in which they count.
    along : dimension along which they were found.
    """

    ordered: int | None
    counts: Literal["rows", "places", ""] = ""
    length: int = 0
    along: int = 0


def mark_orders(graph: fx.Graph) -> None:
    """Mark the sorts that each part of the rows may do by itself, and all that depends on them; in place."""
    alike = alike_dims(graph)
    for node in list(graph.nodes):
        if node.target in SORTS and not order_mark(node).part_divisor and node.args[0].meta["val"].dim() == 1:
            region = _Region(node, alike)
            try:
                region.follow()
            except _DependsOnOrderError:
                continue
            region.mark()


@dataclass
class _Region:
    """All that depends on the order of one sort.

    Attributes
    ----------
    alike : dimensions along which tensors of the graph have the same numbers.
    facts : what is known of the tensors that do.
    looks_up : ops that look up by numbers of rows or places.
    sorts : further sorts that are in this order.
    counters : by op, the ``arange`` among its operands that counts places.
    divisor : a number that divides the length of each part, for numbers are divided by it.
    """

    sort: fx.Node
    alike: dict[fx.Node, frozenset[int]]
    facts: dict[fx.Node, _OrderFacts] = field(default_factory=dict)
    looks_up: set[fx.Node] = field(default_factory=set)
    sorts: list[fx.Node] = field(default_factory=list)
    counters: dict[fx.Node, fx.Node] = field(default_factory=dict)
    divisor: int = 1

    @property
    def length(self) -> int:
        """Elements that are sorted."""
        return int(self.sort.args[0].meta["val"].numel())  # type: ignore[union-attr]

    def follow(self) -> None:
        """Follow all that depends on the sort.

        Raises
        ------
        _DependsOnOrderError
            If something depends on the order in another way.
        """
        if self.length < 2:
            raise _DependsOnOrderError
        self._results(self.sort, _OrderFacts(0), _OrderFacts(0, "rows", self.length))
        for node in self.sort.graph.nodes:
            if (
                node in self.facts
                or node is self.sort
                or not any(n in self.facts for n in node.all_input_nodes)
            ):
                continue
            if node.op == "output" or any(order_mark(n).depends for n in node.all_input_nodes):
                raise _DependsOnOrderError
            self._visit(node)

    def mark(self) -> None:
        """Mark what was found."""
        for node, counter in self.counters.items():
            with node.graph.inserting_before(node):
                own = add_op(node.graph, counter.target, counter.args, dict(counter.kwargs))
            own.meta = dict(counter.meta)
            mark(own, OrderMark(self.divisor, counts=True))
            node.replace_input_with(counter, own)
        for node in (self.sort, *self.sorts):
            mark(node, OrderMark(self.divisor))
        for node in self.looks_up | self.facts.keys():
            facts = self.facts.get(node, _OrderFacts(None))
            mark(node, OrderMark(0, node in self.looks_up, facts.ordered, bool(facts.counts)))

    def _results(self, sort: fx.Node, values: _OrderFacts | None, numbers: _OrderFacts) -> None:
        for taken in sort.users:
            found = (values, numbers)[taken.args[1]]  # type: ignore[index]
            if found is None and taken.users:
                raise _DependsOnOrderError
            if found is not None:
                self.facts[taken] = found

    def _visit(self, node: fx.Node) -> None:
        operands = tensor_args(node)
        given = [self.facts.get(operand) for operand in operands]
        counting = [i for i, followed in enumerate(given) if followed is not None and followed.counts]
        if node.target in ALIKE:
            return
        if not counting:
            self._treat_alike(node, given)
        elif len(counting) > 1:
            raise _DependsOnOrderError
        elif counting[0] == INDEX and lookup_of(node) is not None:
            self._look_up(node, given)
        elif node.target in SAME_NUMBERS:
            self._pass_on(node, given[0])
        elif node.target in _QUOTIENTS | _REMAINDERS:
            self._divide(node, given[0])
        elif node.target in SORTS:
            self._invert(node, given[0])
        else:
            raise _DependsOnOrderError

    def _treat_alike(self, node: fx.Node, given: list[_OrderFacts | None]) -> None:
        """An op that treats all places alike: its dimension in order is mapped, or summed."""
        factors = self._factors(node, given)
        results = axes_of(node).results
        places = [[d for d, own in enumerate(dims) if factors & set(own)] for dims in results]
        for dims, found in zip(results, places, strict=True):
            if len(found) > 1 or any(len(dims[d]) > 1 for d in found):
                raise _DependsOnOrderError
        if isinstance(node.meta["val"], torch.Tensor):
            if places[0]:
                self.facts[node] = _OrderFacts(places[0][0])
            return
        numbers = [i for i, value in enumerate(node.meta["val"]) if isinstance(value, torch.Tensor)]
        for taken in node.users:
            found = places[numbers.index(taken.args[1])]  # type: ignore[arg-type]
            if found:
                self.facts[taken] = _OrderFacts(found[0])

    def _factors(self, node: fx.Node, given: list[_OrderFacts | None]) -> set[str]:
        """The factors of an op that are in order, in all of its operands that have them."""
        axes = axes_of(node)
        found = set[str]()
        for followed, dims in zip(given, axes.operands, strict=True):
            if followed is not None and followed.ordered is not None:
                found.add(_only(dims[followed.ordered]))
        held = axes.whole if node.target in _TAKES_PARTS else axes.whole | axes.contiguous
        if (
            node.target in _DRAWN_BY_POSITION
            or found & held
            or any(axes.sizes[f] != self.length for f in found)
        ):
            raise _DependsOnOrderError
        for operand, followed, dims in zip(tensor_args(node), given, axes.operands, strict=True):
            for d, own in enumerate(dims):
                if found & set(own) and not self._is_ordered(operand, followed, d):
                    raise _DependsOnOrderError
        return found

    def _is_ordered(self, operand: fx.Node, followed: _OrderFacts | None, dim: int) -> bool:
        return self._is_alike(operand, dim) or (followed is not None and followed.ordered == dim)

    def _pass_on(self, node: fx.Node, given: _OrderFacts | None) -> None:
        """A view or a copy of numbers."""
        assert given is not None
        if node.meta["val"].dtype not in (torch.int32, torch.int64):
            raise _DependsOnOrderError
        axes = axes_of(node)
        factor = _only(axes.operands[0][given.along])
        found = [d for d, own in enumerate(axes.results[0]) if own == (factor,)]
        if not found:
            raise _DependsOnOrderError
        ordered = None if given.ordered is None else found[0]
        self.facts[node] = replace(given, ordered=ordered, along=found[0])

    def _divide(self, node: fx.Node, given: _OrderFacts | None) -> None:
        """Numbers of rows, of which each has several places that are sorted: the row, or which of its places."""
        assert given is not None
        number = node.args[1]
        if (
            given.counts != "rows"
            or not isinstance(number, int)
            or number < 1
            or given.length % number
            or (node.target in _QUOTIENTS and argument(node, "rounding_mode") not in (None, "floor", "trunc"))
        ):
            raise _DependsOnOrderError
        self.divisor = math.lcm(self.divisor, self.length // given.length * number)
        if node.target in _QUOTIENTS:
            self.facts[node] = replace(given, length=given.length // number)
        elif given.ordered is not None:
            self.facts[node] = _OrderFacts(given.ordered)

    def _invert(self, node: fx.Node, given: _OrderFacts | None) -> None:
        """The order of the order: the place of each row."""
        assert given is not None
        is_plain = node.args[0].meta["val"].dim() == 1 and not argument(node, "descending")  # type: ignore[union-attr]
        if not is_plain or given.counts != "rows" or given.length != self.length:
            raise _DependsOnOrderError
        self.sorts.append(node)
        self._results(node, None, _OrderFacts(None, "places", self.length))

    def _look_up(self, node: fx.Node, given: list[_OrderFacts | None]) -> None:
        """An op that reads or writes a table at rows or places."""
        lookup, operands = lookup_of(node), tensor_args(node)
        assert lookup is not None
        index = given[INDEX]
        assert index is not None
        length = int(operands[0].meta["val"].shape[lookup.dim])
        if length != index.length or lookup.along != index.along:
            raise _DependsOnOrderError
        of_table = lookup.dim if index.counts == "places" else None
        of_values = None if index.ordered is None else lookup.found
        self._check_order(operands[0], given[0], lookup.dim, of_table)
        self.looks_up.add(node)
        if lookup.effect == "reads":
            if of_values is not None:
                self.facts[node] = _OrderFacts(of_values)
            return
        if lookup.effect != "adds" and index.length != self.length:
            raise _DependsOnOrderError  # of several values for one row, the last would count
        for values, followed in zip(operands[INDEX + 1 :], given[INDEX + 1 :], strict=True):
            if (
                of_values is not None
                and lookup.effect == "replaces"
                and values.target in COUNTERS
                and counts_up(values)
            ):
                self.counters[node] = values
            else:
                self._check_order(values, followed, lookup.found, of_values)
        if node in self.counters:
            self.facts[node] = _OrderFacts(of_table, "places", self.length, lookup.dim)
        elif of_table is not None:
            self.facts[node] = _OrderFacts(of_table)

    def _is_alike(self, node: fx.Node, dim: int) -> bool:
        """Whether a tensor has the same numbers all along a dimension, perhaps one that it lacks."""
        return dim < 0 or dim not in unlike_dims(node, self.alike)

    def _check_order(self, node: fx.Node, followed: _OrderFacts | None, dim: int, wanted: int | None) -> None:
        """Refuse an operand whose dimension ``dim`` is in order where it must not be, or is not where it must be."""
        ordered = None if followed is None else followed.ordered
        if ordered not in (None, dim) or (ordered != wanted and not self._is_alike(node, dim)):
            raise _DependsOnOrderError


def _only(factors: tuple[str, ...]) -> str:
    if len(factors) != 1:
        raise _DependsOnOrderError
    return factors[0]
