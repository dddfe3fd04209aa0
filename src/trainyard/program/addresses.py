"""Addresses: names of ops that a person can write, and that hold for other numbers of rows.

``blocks.0.attention:bmm.2`` is the second ``bmm`` in the forward pass of the module ``blocks.0.attention``, and
``blocks.0.attention:backward.bmm.2`` the second one of its backward pass, both in the order of the program. The first has
no number, and an op outside of all modules nothing before the colon: ``:add``. Where an op is written out as several
(`trainyard.program.decompose`), those that do not compute its results are parts of it: ``:_log_softmax/sum``.
A pattern (`trainyard.program.patterns`) stands for all ops whose addresses are like it.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Iterable

from torch import fx

from trainyard.errors import TrainyardError
from trainyard.program.nodes import op_name
from trainyard.program.patterns import BACKWARD, is_like, is_op_like, kind_of
from trainyard.reading import shown

__all__ = ["AddressError", "Addresses", "Numbering", "address", "give_addresses"]


class AddressError(TrainyardError, ValueError):
    """An address or pattern that stands for no op; the message names some that do."""


def address(node: fx.Node) -> str:
    """The address of an op; where lowering made it, the module that it belongs to and its name."""
    known = node.meta.get("address")
    return _unnumbered(node) if known is None else str(known)


def _unnumbered(node: fx.Node) -> str:
    phase = BACKWARD if node.meta.get("phase") == "backward" else ""
    return f"{node.meta.get('layer', '')}:{phase}{op_name(node.target)}"


class Numbering:
    """Tells apart what would have one address."""

    def __init__(self, taken: Iterable[str] = ()) -> None:
        self._taken = set(taken)
        self._counts: dict[str, int] = {}

    def next(self, unnumbered: str) -> str:
        """The address itself, or with the next number that is free."""
        count, found = self._counts.get(unnumbered, 0), ""
        while not found or found in self._taken:
            count += 1
            found = unnumbered if count == 1 else f"{unnumbered}.{count}"
        self._counts[unnumbered] = count
        self._taken.add(found)
        return found


def give_addresses(graph: fx.Graph) -> None:
    """Give an address, ``meta["address"]``, to every op that has none yet; copies of an op keep the one that it has."""
    ops = _ops(graph)
    numbering = Numbering(node.meta["address"] for node in ops if "address" in node.meta)
    for node in ops:
        if "address" not in node.meta:
            node.meta["address"] = numbering.next(_unnumbered(node))


def _ops(graph: fx.Graph) -> list[fx.Node]:
    return [node for node in graph.nodes if node.op == "call_function"]


class Addresses:
    """The ops of a graph by their addresses.

    Attributes
    ----------
    nodes : by address, in program order.
    """

    def __init__(self, graph: fx.Graph) -> None:
        self.nodes: dict[str, fx.Node] = {
            node.meta["address"]: node for node in _ops(graph) if "address" in node.meta
        }
        self._modules: dict[str, dict[str, fx.Node]] = {}
        for name, node in self.nodes.items():
            module, _, op = name.rpartition(":")
            self._modules.setdefault(module, {})[op] = node
        self._known: dict[str, tuple[fx.Node, ...]] = {}
        self._modules_like: dict[str, tuple[str, ...]] = {}

    def find(self, name: str) -> tuple[fx.Node, ...]:
        """The ops that an address or a pattern stands for: at least one.

        Raises
        ------
        AddressError
            If there is none.
        """
        if name not in self._known:
            exact = self.nodes.get(name)
            self._known[name] = self._like(name) if exact is None else (exact,)
        if not self._known[name]:
            raise AddressError(f"{shown(name)} is no op of the model{self._close(name)}")
        return self._known[name]

    def names(self, patterns: Iterable[str]) -> frozenset[str]:
        """The addresses that some addresses and patterns stand for.

        Raises
        ------
        AddressError
            If one of them stands for no op.
        """
        return frozenset(node.meta["address"] for pattern in patterns for node in self.find(pattern))

    def shortened(self, nodes: Iterable[fx.Node]) -> tuple[str, ...]:
        """Addresses and patterns that stand for some ops of the graph, and no others; few where they repeat."""
        left = dict.fromkeys(nodes)
        wanted, found = set(left), []
        for wider in (_anywhere, _in_modules_like, _in_like_modules, address):
            for pattern, inside in _grouped(left, wider).items():
                # Where a module has one op, that is said by its name.
                is_short = not pattern.endswith("*") or len(set(map(_op, inside))) > 1
                if is_short and wanted.issuperset(self.find(pattern)):
                    found.append(pattern)
                    for node in inside:
                        del left[node]
        return tuple(found)

    def _like(self, pattern: str) -> tuple[fx.Node, ...]:
        module, colon, op = pattern.rpartition(":")
        if not colon or "*" not in pattern:
            return ()
        if module not in self._modules_like:
            self._modules_like[module] = tuple(path for path in self._modules if is_like(module, path))
        return tuple(
            node
            for path in self._modules_like[module]
            for name, node in self._modules[path].items()
            if is_op_like(op, name)
        )

    def _close(self, name: str) -> str:
        """Some addresses that are nearly the one given, as patterns, of which there are few."""
        kinds = dict.fromkeys(_in_like_modules(node) for node in self.nodes.values())
        module, colon, op = name.rpartition(":")
        asked = f"{kind_of(module)}{colon}{op}"
        close = difflib.get_close_matches(asked[:200], kinds, cutoff=0.5) or list(kinds)[:3]
        return f"; there are {', '.join(close)}" if close else ""


def _grouped(nodes: Collection[fx.Node], pattern_of: Callable[[fx.Node], str]) -> dict[str, list[fx.Node]]:
    found: dict[str, list[fx.Node]] = {}
    for node in nodes:
        found.setdefault(pattern_of(node), []).append(node)
    return found


def _op(node: fx.Node) -> str:
    return address(node).rpartition(":")[2]


def _any_op(node: fx.Node) -> str:
    return f"{BACKWARD}*" if node.meta["phase"] == "backward" else "*"


def _anywhere(node: fx.Node) -> str:
    return f"**:{_any_op(node)}"


def _in_modules_like(node: fx.Node) -> str:
    """All ops of one pass in the modules of one kind."""
    return f"{kind_of(address(node).rpartition(':')[0])}:{_any_op(node)}"


def _in_like_modules(node: fx.Node) -> str:
    """One op of all modules of one kind."""
    module, _, op = address(node).rpartition(":")
    return f"{kind_of(module)}:{op}"
