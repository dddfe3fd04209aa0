"""The registry of rules: which dimensions every op maps, sums or needs whole.

A rule is a function from a node to its ``OpAxes``. Rules are registered in the files beside this one, by kind:
``elementwise``, ``shapes``, ``linear_algebra``, ``batched``, ``normalise``, ``indexing``, ``spatial``. An op without
a rule is replicated: correct on every mesh, parallel on none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import fx

from trainyard.program.algebra.lookups import within_parts
from trainyard.program.algebra.notation import Dims, OpAxes, axes_from
from trainyard.program.orders import order_mark
from trainyard.program.program import tensors_of

Rule = Callable[[fx.Node], OpAxes]

RULES: dict[Any, Rule] = {}


def rule(*targets: Any) -> Callable[[Rule], Rule]:
    """Register a rule for some ops."""

    def register(function: Rule) -> Rule:
        for target in targets:
            RULES[target] = function
        return function

    return register


def declare(target: Any, function: Rule) -> None:
    """Register a rule for an op that may have been used before, without one or with another."""
    RULES[target] = function
    for key in [key for key in _known if key[0] == target]:
        del _known[key]


def text_rule(target: Any, text: str, **kwargs: Any) -> None:
    """Register an op whose operands always have the same number of dimensions."""
    RULES[target] = lambda node: axes_from(text, shapes(node), **kwargs)


def args_of(node: fx.Node) -> tuple[Any, ...]:
    """A node's positional arguments; their types are the op's, which FX does not know."""
    return node.args


def tensor_args(node: fx.Node) -> list[fx.Node]:
    """The nodes among a node's arguments that are tensors, in order; one that is given twice counts twice."""
    found: list[fx.Node] = []
    _collect_tensors(node.args, found)
    _collect_tensors(tuple(node.kwargs.values()), found)
    return found


def _collect_tensors(arguments: Iterable[Any], found: list[fx.Node]) -> None:
    for argument in arguments:
        if isinstance(argument, fx.Node):
            if isinstance(argument.meta.get("val"), torch.Tensor):
                found.append(argument)
        elif isinstance(argument, list | tuple):
            _collect_tensors(argument, found)


def shapes(node: fx.Node) -> list[tuple[int, ...]]:
    """Shapes of the tensor arguments."""
    return [tuple(a.meta["val"].shape) for a in tensor_args(node)]


def result_shapes(node: fx.Node) -> list[tuple[int, ...]]:
    return [tuple(t.shape) for t in tensors_of(node)]


def present(node: fx.Node, results: tuple[Dims, ...]) -> tuple[Dims, ...]:
    """Those of all possible results that the op makes; what is not asked of a gradient op may be no tensor."""
    made = node.meta["val"]
    return tuple(dims for dims, value in zip(results, made, strict=True) if isinstance(value, torch.Tensor))


def named(prefix: str, shape: Iterable[int]) -> Dims:
    """One factor per dimension: ``d0 d1 ...``; none where the size is one."""
    return tuple((f"{prefix}{d}",) if n > 1 else () for d, n in enumerate(shape))


def dim_in(shape: tuple[int, ...], dim: int) -> int:
    """Count a dimension from the first; PyTorch takes 0 and -1 for tensors without dimensions, too."""
    return dim % max(1, len(shape))


def sizes_of(prefix: str, shape: Iterable[int]) -> dict[str, int]:
    return {f"{prefix}{d}": n for d, n in enumerate(shape) if n > 1}


def same_dims(node: fx.Node, whole: Iterable[int], linear: tuple[frozenset[int], ...] = ()) -> OpAxes:
    """Every operand and result has the shape of operand 0; the dimensions in ``whole`` cannot be cut."""
    shape = shapes(node)[0]
    dims = named("d", shape)
    held = frozenset(f"d{dim_in(shape, d)}" for d in whole)
    operands = tuple(_fit(dims, s, shape) for s in shapes(node))
    results = tuple(_fit(dims, s, shape) for s in result_shapes(node))
    return OpAxes(operands, results, sizes_of("d", shape), held, linear=linear)


def leading(node: fx.Node, count: int, linear: tuple[frozenset[int], ...] = ()) -> OpAxes:
    """The first ``count`` dimensions are mapped, and are the same in every operand and result; the others are whole."""
    lead = shapes(node)[0][:count]
    if any(s[:count] != lead for s in (*shapes(node), *result_shapes(node))):
        return replicated(node)
    dims = named("d", lead)
    operands, results = (
        tuple((*dims, *(() for _ in s[count:])) for s in given)
        for given in (shapes(node), result_shapes(node))
    )
    return OpAxes(operands, results, sizes_of("d", lead), linear=linear)


def resized(node: fx.Node, whole: Iterable[int], linear: tuple[frozenset[int], ...] = ()) -> OpAxes:
    """Every operand and result has the dimensions of operand 0; those in ``whole`` may differ and cannot be cut."""
    shape = shapes(node)[0]
    held = {dim_in(shape, d) for d in whole}
    dims: Dims = tuple(() if d in held else f for d, f in enumerate(named("d", shape)))
    sizes = {f: shape[d] for d, factors in enumerate(dims) for f in factors}
    return OpAxes((dims,) * len(shapes(node)), (dims,) * len(result_shapes(node)), sizes, linear=linear)


def _fit(dims: Dims, shape: tuple[int, ...], full: tuple[int, ...]) -> Dims:
    """The dims of a tensor aligned to the right of ``full``; broadcast dimensions lose their factor."""
    if len(shape) > len(full):
        raise ValueError(f"shape {shape} does not align with {full}")
    tail = dims[len(full) - len(shape) :]
    return tuple(f if n != 1 else () for f, n in zip(tail, shape, strict=True))


def first_index(start: Any, size: int) -> int:
    """Where a slice of a dimension begins, counted from its first element."""
    begin = 0 if start is None else int(start)
    return max(0, begin + size if begin < 0 else min(begin, size))


def replicated(node: fx.Node) -> OpAxes:
    """No dimension can be cut."""
    operands = tuple(tuple(() for _ in s) for s in shapes(node))
    return OpAxes(operands, tuple(tuple(() for _ in s) for s in result_shapes(node)), {})


_known: dict[Any, OpAxes] = {}


def axes_of(node: fx.Node) -> OpAxes:
    """The axes of any op; the same object for the same op on the same shapes."""
    key = _key(node)
    if key not in _known:
        _known[key] = _axes_of(node)
    return _known[key]


def _key(node: fx.Node) -> Any:
    """All that a rule may look at: op, arguments, of tensors the shapes, types and which are the same, and marks."""
    numbers: dict[fx.Node, int] = {}

    def plain(value: Any) -> Any:
        if isinstance(value, fx.Node):
            tensor = value.meta.get("val")
            form = (tuple(tensor.shape), tensor.dtype) if isinstance(tensor, torch.Tensor) else None
            return numbers.setdefault(value, len(numbers)), form
        if isinstance(value, list | tuple):
            return tuple(map(plain, value))
        # True is not 1, though it equals it.
        return type(value), value

    args = tuple(map(plain, node.args))
    kwargs = tuple((k, plain(v)) for k, v in node.kwargs.items())
    return node.target, args, kwargs, tuple(tuple(t.shape) for t in tensors_of(node)), order_mark(node)


def _axes_of(node: fx.Node) -> OpAxes:
    found = RULES.get(node.target)
    if found is not None:
        axes = found(node)
        if not _fits(node, axes):
            return replicated(node)
        return within_parts(node, axes) if order_mark(node).looks_up else axes
    if isinstance(node.target, torch._ops.OpOverload) and torch.Tag.pointwise in node.target.tags:
        return RULES["pointwise"](node)
    return replicated(node)


def _fits(node: fx.Node, axes: OpAxes) -> bool:
    """Whether axes have the dimensions of a node's tensors; a rule may not know all that its op takes."""
    sides = (axes.operands, shapes(node)), (axes.results, result_shapes(node))
    return all([*map(len, dims)] == [*map(len, given)] for dims, given in sides)


def has_rule(target: Any) -> bool:
    """Whether an op is described; the others are replicated."""
    return target in RULES or (
        isinstance(target, torch._ops.OpOverload) and torch.Tag.pointwise in target.tags
    )
