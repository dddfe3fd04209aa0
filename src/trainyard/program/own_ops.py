"""Ops of the user's own, registered with ``torch.library``, whose rows are declared to be computed apart."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.utils import _pytree as pytree

from trainyard.program.algebra.notation import OpAxes
from trainyard.program.algebra.rules import declare
from trainyard.program.capture_error import CaptureError
from trainyard.program.program import tensors_of
from trainyard.reading.arguments import WrongValueError

__all__ = ["check_declared_rows", "rows"]

_ROWS, _PARTS = 4, ((0, 1), (1, 4))  # on which an op is checked, at once and in parts
_Side = tuple[tuple[int, ...], bool]
_TOLERANCE = {torch.float16: 1e-2, torch.bfloat16: 5e-2}


def rows(
    op: Any = None,
    *,
    shared: Sequence[str] = (),
    summed: Sequence[int] = (),
    example: Sequence[Any] = (),
) -> Any:
    """Declare that an op registered with ``torch.library`` computes every row by itself.

    Its rows are dimension 0 of its tensor arguments and results. The batch is then split at the op as at PyTorch's own.
    It is called with the op, or stands as a decorator above ``torch.library.custom_op``. An op that the gradient calls
    is declared for itself. When a model is captured, the op is run on four rows at once and in parts, and refused if the
    results differ.

    Parameters
    ----------
    op : what ``torch.library.custom_op`` returns, or an op such as ``torch.ops.mine.swish``. It writes to no argument.
    shared : names of tensor arguments without rows, such as a weight: every row uses all of it.
    summed : positions of results without rows that are sums over the rows, such as the gradient of a weight.
    example : positional arguments, of four rows, on which it is run for the check. By default numbers are drawn: normal
        ones, and 0 or 1 where they are integers.

    Returns
    -------
    The op.

    Raises
    ------
    WrongValueError
        If it is no such op, or has no argument or result of that name or position.

    Examples
    --------
    >>> import torch
    >>> import trainyard
    >>> @trainyard.rows(shared=["scale"])
    ... @torch.library.custom_op("docs::scaled", mutates_args=())
    ... def scaled(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    ...     return x * scale
    """
    if op is None:
        return lambda given: rows(given, shared=shared, summed=summed, example=example)
    target = _overload(op)
    tensors = [a.name for a in target._schema.arguments if "Tensor" in str(a.type)]
    _refuse_unknown(target, "shared", shared, tensors)
    _refuse_unknown(target, "summed", summed, range(len(target._schema.returns)))
    declared = _Declared(target, frozenset(shared), frozenset(summed), tuple(example))
    _DECLARED[target] = declared
    declare(target, declared.axes)
    return op


def check_declared_rows(graph: fx.Graph) -> None:
    """Run the declared ops of a graph on four rows, and on parts of them.

    An op is checked on the CPU, and on a GPU where this process computes on one; where it has no kernel it is not.

    Raises
    ------
    CaptureError
        If the tensors of an op do not have the rows of its declaration, or the results of parts are not those of all
        rows at once.
    """
    checked = set[Hashable]()
    with unset_fake_temporarily(), torch.no_grad(), torch.random.fork_rng(devices=()):
        for node in graph.nodes:
            if node.target in _DECLARED:
                _DECLARED[node.target].check(node, checked)


def _overload(op: Any) -> Any:
    """The one overload of an op, which must be the user's own and write to nothing.

    Raises
    ------
    WrongValueError
        If there is no such.
    """
    target = getattr(op, "_opoverload", op)
    if isinstance(target, torch._ops.OpOverloadPacket) and len(target.overloads()) == 1:
        target = getattr(target, target.overloads()[0])
    if not isinstance(target, torch._ops.OpOverload) or target.namespace in ("aten", "prims", "trainyard"):
        raise WrongValueError(
            f"rows are declared of an op of one's own; given {op}. Allowed is what torch.library.custom_op returns, or "
            "an op such as torch.ops.mine.swish with one overload. The rows of PyTorch's own ops are known"
        )
    if target._schema.is_mutable:
        raise WrongValueError(
            f"{target} writes to its arguments, so nothing can be said of its rows. Return new tensors, with "
            "mutates_args=()"
        )
    return target


def _refuse_unknown(target: Any, what: str, given: Collection[Any], allowed: Iterable[Any]) -> None:
    known = list(allowed)
    if isinstance(given, str) or not all(each in known for each in given):
        raise WrongValueError(f"{what}={given!r} of {target} must be a list of some of {known}")


@dataclass(frozen=True)
class _Declared:
    """The declaration of one op; its attributes are the parameters of `rows`."""

    op: Any
    shared: frozenset[str]
    summed: frozenset[int]
    example: tuple[Any, ...]

    def axes(self, node: fx.Node) -> OpAxes:
        """The rule of the op: rows are mapped, all other dimensions are whole."""
        operands, results = self._sides(node)
        size = next((s[0] for s, has_rows in operands if has_rows and s), 1)
        if any(has_rows and s[:1] != (size,) for s, has_rows in (*operands, *results)):
            raise CaptureError(
                f"{self.op} is declared to compute every row by itself, and is called with tensors of shapes "
                f"{[s for s, _ in operands]}, which give {[s for s, _ in results]}. Those that are not named by "
                f"shared={sorted(self.shared)} and summed={sorted(self.summed)} must have equally many rows"
            )
        dims = ("n",) if size > 1 else ()
        first, second = (
            tuple((dims, *((),) * (len(s) - 1)) if has_rows else ((),) * len(s) for s, has_rows in side)
            for side in (operands, results)
        )
        return OpAxes(first, second, {"n": size} if size > 1 else {})

    def _sides(self, node: fx.Node) -> tuple[list[_Side], list[_Side]]:
        """Shapes of the tensors that a call takes and makes, and whether they have rows."""
        operands = [
            (tuple(leaf.meta["val"].shape), name not in self.shared)
            for name, value in self._named(node.args, node.kwargs).items()
            for leaf in pytree.tree_leaves(value)
            if isinstance(leaf, fx.Node)
        ]
        results = [(tuple(t.shape), i not in self.summed) for i, t in enumerate(tensors_of(node))]
        return operands, results

    def _named(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments by name, in the order in which they are given."""
        names = [a.name for a in self.op._schema.arguments]
        return {**dict(zip(names, args, strict=False)), **kwargs}

    def check(self, node: fx.Node, checked: set[Hashable]) -> None:
        """Compare the results for all rows with those for parts of them, once for calls that differ in rows only."""
        self.axes(node)
        forms = {
            name: pytree.tree_map_only(fx.Node, partial(_Form.of, has_rows=name not in self.shared), value)
            for name, value in self._named(node.args, node.kwargs).items()
        }
        call = self.op, repr(forms)
        if call in checked:
            return
        checked.add(call)
        if self.example:
            self._check_on(self._named(self.example, {}))
            return
        generator = torch.Generator().manual_seed(0)
        given = {
            name: pytree.tree_map_only(_Form, lambda form: form.draw(generator), value)
            for name, value in forms.items()
        }
        # CUDA is left alone where nothing is trained on it: what has used it cannot be forked.
        for device in ("cpu", "cuda") if torch.cuda.is_initialized() else ("cpu",):
            self._check_on(pytree.tree_map_only(Tensor, partial(Tensor.to, device=device), given))

    def _check_on(self, given: Mapping[str, Any]) -> None:
        try:
            self._check_example(given)
            whole, *parts = (self._run(given, first, last) for first, last in ((0, _ROWS), *_PARTS))
        except NotImplementedError:
            return
        except Exception as error:
            raise CaptureError(
                f"{self.op} is declared to compute every row by itself, and fails on {_ROWS} rows or on a part of them: "
                f"{error}. Give arguments of {_ROWS} rows on which it can be checked, trainyard.rows(op, example=[...]), "
                "or leave the declaration out"
            ) from error
        for i, (full, *own) in enumerate(zip(whole, *parts, strict=True)):
            self._compare(i, full, sum(own) if i in self.summed else torch.cat(own))

    def _check_example(self, given: Mapping[str, Any]) -> None:
        """Refuse arguments on which nothing shows."""
        tensors = [t for name, v in given.items() if name not in self.shared for t in pytree.tree_leaves(v)]
        if any(t.shape[:1] != (_ROWS,) for t in tensors if isinstance(t, Tensor)):
            raise ValueError(f"the example has not {_ROWS} rows")
        if len(self.example) > len(self.op._schema.arguments):
            raise ValueError("the example has more arguments than the op")

    def _run(self, given: Mapping[str, Any], first: int, last: int) -> list[Tensor]:
        """The results for some rows."""
        cut = {
            name: value
            if name in self.shared
            else pytree.tree_map_only(Tensor, lambda t: t[first:last], value)
            for name, value in given.items()
        }
        found = [t for t in pytree.tree_leaves(self.op(**cut)) if isinstance(t, Tensor)]
        if any(t.numel() and not t.isfinite().any() for t in found):
            raise ValueError("no number of a result is finite")
        if last - first == _ROWS and not any(t.any() for t in found):
            raise ValueError("all numbers of the results are 0")
        return found

    def _compare(self, place: int, whole: Tensor, joined: Any) -> None:
        same = whole.shape == joined.shape and _are_close(whole, joined)
        if not same:
            raise CaptureError(
                f"{self.op} is declared to compute every row by itself, and its result {place} is another one for "
                "4 rows at once than for 1 and 3 of them. Name arguments that all rows use with trainyard.rows(op, "
                "shared=[...]), results that are sums over rows with summed=[...], or leave the declaration out"
            )


def _are_close(whole: Tensor, joined: Tensor) -> bool:
    wide = torch.complex128 if whole.is_complex() else torch.float64
    full, parts = whole.to(wide), joined.to(wide)
    finite = full[full.isfinite()].abs()
    scale = float(finite.max()) if finite.numel() else 0.0
    return torch.allclose(
        parts, full, rtol=0.0, atol=_TOLERANCE.get(whole.dtype, 1e-4) * scale, equal_nan=True
    )


@dataclass(frozen=True)
class _Form:
    """The shape and type of a tensor argument, of few rows if it has rows."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @classmethod
    def of(cls, node: fx.Node, has_rows: bool) -> _Form:
        like: Tensor = node.meta["val"]
        return cls((_ROWS, *like.shape[1:]) if has_rows else tuple(like.shape), like.dtype)

    def draw(self, generator: torch.Generator) -> Tensor:
        """Draw a tensor of this form."""
        if self.dtype.is_floating_point or self.dtype.is_complex:
            return torch.randn(self.shape, generator=generator, dtype=torch.float32).to(self.dtype)
        return torch.randint(0, 2, self.shape, generator=generator).to(self.dtype)


_DECLARED: dict[Any, _Declared] = {}
