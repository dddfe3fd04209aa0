"""Catalogued things by name: ``"gpipe(stages=4) + zero"`` as text, and what it stands for.

Options are Python literals by keyword, read and never evaluated.
"""

from __future__ import annotations

import ast
import difflib
import inspect
import math
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import MappingProxyType, NoneType
from typing import Any, Generic, Literal, NamedTuple, Protocol, TypeVar, get_args, get_origin, get_type_hints

from trainyard.reading import shown

T = TypeVar("T", covariant=True)


class Named(Protocol[T]):
    """An entry of a catalog, or one of the user's own, as far as names go."""

    @property
    def name(self) -> str: ...

    @property
    def factory(self) -> Callable[..., T]: ...


T_ = TypeVar("T_")

_MOST_TEXT = 10_000
_LARGEST = 2**63
_KINDS = MappingProxyType({float: "a number", str: "text in quotes", bool: "True or False", NoneType: "None"})
_QUOTED = re.compile(r"""'[^']*'|"[^"]*\"""")
_IN_A_FILE = r"""'[^']*'|"[^"]*"|{}+\.py:[^\W\d]\w*"""
_QUOTED_OR_IN_A_FILE = {
    "+": re.compile(_IN_A_FILE.format("""[^()'"+]""")),
    ",": re.compile(_IN_A_FILE.format("""[^,()'"]""")),
    ", +": re.compile(_IN_A_FILE.format("""[^,()'"+]""")),  # of a sum, a path has no +
}


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
    in_file : finds ``FILE.py:NAME``, where the user may give something of their own.
    """

    entries: Sequence[Named[T_]]
    kind: str
    kinds: str
    example: str
    error: type[Exception]
    types: tuple[type, ...]
    types_in_words: str
    in_file: Callable[[str], Named[T_]] | None = None

    def find(self, name: str) -> Named[T_]:
        """The entry of a name; the error for an unknown one names the option that has it, or lists the known names."""
        known = {entry.name: entry for entry in self.entries}
        if name in known:
            return known[name]
        if self.in_file is not None and ".py:" in name:
            return self.in_file(name)
        if meant := list(self._with_option(name)):
            raise self.error(f"unknown {self.kind} {shown(name)}; it is an option: {', '.join(meant)}")
        close = difflib.get_close_matches(name, known, n=3, cutoff=0.4)
        others = [n for n in known if n not in close]
        raise self.error(f"unknown {self.kind} {shown(name)}; known: {', '.join([*close, *others])}")

    def _with_option(self, name: str) -> Iterator[str]:
        """Yield entries that have an option of this name, or an option with this value."""
        for entry in self.entries:
            hints = get_type_hints(entry.factory)
            for option in inspect.signature(entry.factory).parameters:
                if option == name:
                    yield f"{entry.name}({name}=...)"
                elif name in _literals(hints.get(option)):
                    yield f"{entry.name}({option}={name!r})"

    def parse(self, text: str, joined_by: str) -> tuple[tuple[str, T_], ...]:
        """Pairs of the name, with its options, and what it makes, in the order of the text.

        Parameters
        ----------
        text : names, each with options in parentheses if it has any.
        joined_by : ``"+"`` or ``","``.
        """
        return tuple((term.text, self._make(term)) for term in self._terms(text, joined_by))

    def parse_sums(self, text: str) -> tuple[tuple[tuple[str, T_], ...], ...]:
        """The same of sums, joined by commas: of each the pairs of its names, which are joined by ``+``."""
        return tuple(
            tuple((term.text, self._make(term)) for term in each) for each in self._sums(text, ", +")
        )

    def split(self, text: str, joined_by: str) -> tuple[str, ...]:
        """The names with their options, each as text that `parse` reads; nothing is looked up or made."""
        return tuple(term.text for term in self._terms(text, joined_by))

    def split_sums(self, text: str) -> tuple[tuple[str, ...], ...]:
        """The same of sums, as `parse_sums` reads them."""
        return tuple(tuple(term.text for term in each) for each in self._sums(text, ", +"))

    def _terms(self, text: str, joined_by: str) -> list[_Term]:
        return [term for (term,) in self._sums(text, joined_by)]

    def _sums(self, text: str, joined_by: str) -> list[list[_Term]]:
        """What is joined by one sign; where that is ``", +"``, by commas, of which each part is joined by ``+``."""
        if len(text) > _MOST_TEXT:
            raise self.error(f"{len(text):,} characters of {self.kinds}; allowed are {_MOST_TEXT:,}")
        quoted = text if self.in_file is None else _QUOTED_OR_IN_A_FILE[joined_by].sub(_quoted, text)
        if not _QUOTED.sub(
            "", quoted
        ).isascii():  # Python takes letters for alike that are not: of full width
            raise self._unreadable(text, joined_by)
        try:
            with warnings.catch_warnings(
                action="ignore"
            ):  # of code that nobody means to run, one for every place
                tree = ast.parse(quoted.strip(), mode="eval").body
            if joined_by == "+":
                return [[_Term.of(part)] for part in _sum(tree)]
            parts = tree.elts if isinstance(tree, ast.Tuple) else [tree]
            return [
                [_Term.of(each) for each in (_sum(part) if joined_by == ", +" else [part])] for part in parts
            ]
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            raise self._unreadable(text, joined_by) from None

    def _make(self, term: _Term) -> T_:
        entry = self.find(term.name)
        factory, options = entry.factory, dict[str, Any]()
        allowed, hints = inspect.signature(factory).parameters, get_type_hints(factory)
        for keyword in term.options:
            if keyword.arg is None or keyword.arg not in allowed:
                known = ", ".join(allowed) or "none"
                raise self.error(f"{entry.name} has no option {keyword.arg!r}; its options: {known}")
            if keyword.arg in options:
                raise self.error(
                    f"option {keyword.arg} of {entry.name} stands twice in {shown(term.text)}; keep one"
                )
            value = options[keyword.arg] = self._value(entry.name, keyword.arg, keyword.value)
            if kinds := _other_kinds(hints.get(keyword.arg), value):
                raise self.error(f"{term.text}: option {keyword.arg} of {entry.name} must be {kinds}")
        try:
            return factory(**options)
        except (TypeError, self.error) as error:
            raise self.error(f"{term.text}: {error}") from error

    def _value(self, name: str, option: str, value: ast.expr) -> Any:
        try:
            found = ast.literal_eval(value)
        except (ValueError, RecursionError, MemoryError):
            found = value
        if isinstance(found, int | float) and not (abs(found) <= _LARGEST or math.isinf(found)):
            raise self.error(
                f"option {option} of {name} is {shown(found)}; allowed are numbers from -2^63 to 2^63"
            )
        if found is None or isinstance(found, self.types):
            return found
        raise self.error(f"option {option} of {name} must be {self.types_in_words}, got {ast.unparse(value)}")

    def _unreadable(self, text: str, joined_by: str) -> Exception:
        return self.error(
            f"cannot read {self.kinds} from {shown(text)}; write names joined by {joined_by}, such as {self.example!r}"
        )


def _other_kinds(hint: Any, value: Any) -> str:
    """What a parameter takes, if a value is of another kind; "" where it says more than a kind, or nothing."""
    if get_origin(hint) is tuple and get_args(hint)[1:] == (...,):
        each = get_args(hint)[0]
        if each not in _KINDS or (type(value) is tuple and not any(_other_kinds(each, one) for one in value)):
            return ""
        return f"a tuple of {_KINDS[each].removeprefix('a ')}s, where one alone has a comma: (1,)"
    parts, named = _parts(hint), _literals(hint)
    if type(value) is float and int in parts and float not in parts:
        return "a whole number"
    kinds = {float if part is int else part for part in parts if get_origin(part) is not Literal}
    given = float if type(value) is int else type(value)
    if given in kinds or value in named or not kinds <= _KINDS.keys():
        return ""
    return " or ".join(
        [words for kind, words in _KINDS.items() if kind in kinds] + [repr(text) for text in named]
    )


def _parts(hint: Any) -> tuple[Any, ...]:
    """Return the types of which a value may be one."""
    return (hint,) if get_origin(hint) is Literal else get_args(hint) or (hint,)


def _literals(hint: Any) -> list[Any]:
    """Return the values that a type names."""
    return [value for part in _parts(hint) if get_origin(part) is Literal for value in get_args(part)]


class _Term(NamedTuple):
    """One name with its options.

    Attributes
    ----------
    text : both as they are written.
    """

    name: str
    options: list[ast.keyword]
    text: str

    @classmethod
    def of(cls, part: ast.expr) -> _Term:
        """What a part of the text says; a `ValueError` if that is no name."""
        call = part if isinstance(part, ast.Call) else ast.Call(part, [], [])
        name = call.func
        if isinstance(name, ast.Constant) and isinstance(name.value, str) and ".py:" in name.value:
            name = ast.Name(name.value)
        if not isinstance(name, ast.Name) or call.args:
            raise ValueError(f"{ast.unparse(part)} is no name with options")
        written = name if part is not call else ast.Call(name, [], call.keywords)
        return cls(name.id, call.keywords, ast.unparse(written))


def _quoted(found: re.Match[str]) -> str:
    """A name in a file as text in quotes, which Python can read; what is in quotes stays as it is."""
    return found[0] if found[0][0] in "'\"" else repr(found[0].strip())


def _sum(tree: ast.expr) -> list[ast.expr]:
    if isinstance(tree, ast.BinOp) and isinstance(tree.op, ast.Add):
        return [*_sum(tree.left), *_sum(tree.right)]
    return [tree]
