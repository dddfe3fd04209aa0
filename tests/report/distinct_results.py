"""Results in which no two numbers are alike."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from itertools import count
from types import NoneType
from typing import Any, TypeVar, get_args, get_type_hints

T = TypeVar("T")
_GROWTH = 1.0731  # two numbers differ by more than the rounding of any cell


class Distinct:
    """Makes numbers that grow from one to the next, and results of them."""

    def __init__(self, first: float = 0.0137) -> None:
        self._first, self._numbers = first, count()

    def number(self) -> float:
        return self._first * _GROWTH ** next(self._numbers)

    def whole(self) -> int:
        return round(31 * _GROWTH ** next(self._numbers))

    def of(self, kind: type[T], **given: Any) -> T:
        """A result: numbers in it and in its parts are new, and texts are the names of their fields."""
        hints = get_type_hints(kind)
        names = [f.name for f in fields(kind) if f.init] if is_dataclass(kind) else kind._fields  # type: ignore[attr-defined]
        made = {name: self._made(name, hints[name]) for name in names if name not in given}
        return kind(**given, **{name: value for name, value in made.items() if value is not None})

    def _made(self, name: str, hint: Any) -> Any:
        kinds = (
            [each for each in get_args(hint) if each is not NoneType]
            if NoneType in get_args(hint)
            else [hint]
        )
        (kind,) = kinds
        if kind is float:
            return self.number()
        if kind is int:
            return self.whole()
        if kind is str:
            return f"the {name}"
        if isinstance(kind, type) and (is_dataclass(kind) or hasattr(kind, "_fields")):
            return self.of(kind)
        return None  # its default
