"""Catalogued things by name: ``"gpipe(stages=4) + zero"`` as text, and what it stands for.

Options are Python literals by keyword, read and never evaluated.
"""

from __future__ import annotations

import ast
import difflib
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

T = TypeVar("T", covariant=True)


class Named(Protocol[T]):
    """An entry of a catalog, as far as names go."""

    @property
    def name(self) -> str: ...

    @property
    def factory(self) -> Callable[..., T]: ...


T_ = TypeVar("T_")


@dataclass(frozen=True)
class Names(Generic[T_]):
    """Reads text that names entries of a catalog.

    Attributes
    ----------
    entries : of the catalog.
    kind : what one is called in messages, ``"strategy"``; ``kinds`` of several.
    example : a text that reads.
    error : what is raised for any other.
    types, types_in_words : of options.
    """

    entries: Sequence[Named[T_]]
    kind: str
    kinds: str
    example: str
    error: type[Exception]
    types: tuple[type, ...]
    types_in_words: str

    def find(self, name: str) -> Named[T_]:
        """The entry of a name; the error for an unknown one lists the known names, close ones first."""
        known = {entry.name: entry for entry in self.entries}
        if name in known:
            return known[name]
        close = difflib.get_close_matches(name, known, n=3, cutoff=0.4)
        others = [n for n in known if n not in close]
        raise self.error(f"unknown {self.kind} {name!r}; known: {', '.join([*close, *others])}")

    def parse(self, text: str, joined_by: str) -> tuple[tuple[str, T_], ...]:
        """Pairs of the name, with its options, and what it makes, in the order of the text.

        Parameters
        ----------
        text : names, each with options in parentheses if it has any.
        joined_by : ``"+"`` or ``","``.
        """
        try:
            tree = ast.parse(text.strip(), mode="eval").body
        except SyntaxError:
            raise self._unreadable(text, joined_by) from None
        terms = _sum(tree) if joined_by == "+" else tree.elts if isinstance(tree, ast.Tuple) else [tree]
        return tuple(self._make(term, text, joined_by) for term in terms)

    def _make(self, part: ast.expr, text: str, joined_by: str) -> tuple[str, T_]:
        call = part if isinstance(part, ast.Call) else ast.Call(part, [], [])
        if not isinstance(call.func, ast.Name) or call.args:
            raise self._unreadable(text, joined_by)
        entry = self.find(call.func.id)
        allowed = inspect.signature(entry.factory).parameters
        options: dict[str, Any] = {}
        for keyword in call.keywords:
            if keyword.arg is None or keyword.arg not in allowed:
                known = ", ".join(allowed) or "none"
                raise self.error(f"{entry.name} has no option {keyword.arg!r}; its options: {known}")
            options[keyword.arg] = self._value(entry.name, keyword.arg, keyword.value)
        try:
            return ast.unparse(part), entry.factory(**options)
        except TypeError as error:
            raise self.error(f"{ast.unparse(part)}: {error}") from error

    def _value(self, name: str, option: str, value: ast.expr) -> Any:
        try:
            found = ast.literal_eval(value)
        except ValueError:
            found = value
        if found is None or isinstance(found, self.types):
            return found
        raise self.error(f"option {option} of {name} must be {self.types_in_words}, got {ast.unparse(value)}")

    def _unreadable(self, text: str, joined_by: str) -> Exception:
        return self.error(
            f"cannot read {self.kinds} from {text!r}; write names joined by {joined_by}, such as {self.example!r}"
        )


def _sum(tree: ast.expr) -> list[ast.expr]:
    if isinstance(tree, ast.BinOp) and isinstance(tree.op, ast.Add):
        return [*_sum(tree.left), *_sum(tree.right)]
    return [tree]
