"""Check what a caller in Python gives: a wrong type is refused by the name of the parameter, before any work starts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from numbers import Integral, Real
from pathlib import Path
from types import MappingProxyType
from typing import Any

from trainyard.errors import TrainyardError

__all__ = [
    "WrongTypeError",
    "WrongValueError",
    "joined_names",
    "name_list",
    "require_field_types",
    "require_function",
    "require_type",
    "type_text",
]


class WrongTypeError(TrainyardError, TypeError):
    """An argument of a wrong type; the message names the parameter and what is allowed."""


class WrongValueError(TrainyardError, ValueError):
    """An argument with a value that is not allowed; the message names the value and what is allowed."""


_FIELD_TYPES: Mapping[str, tuple[type, str]] = MappingProxyType(
    {
        "int": (Integral, "a whole number"),
        "float": (Real, "a number"),
        "bool": (bool, "True or False"),
        "str": (str, "text"),
        "Path": (Path, "a pathlib.Path"),
        "None": (type(None), "None"),
    }
)
"""Types that the annotation of a field may name, and what is allowed there, in words."""


def require_field_types(options: Any) -> None:
    """Refuse a field of a dataclass whose value is not of the type that its annotation names.

    Annotations that name another type than those of `_FIELD_TYPES` are not looked at.

    Raises
    ------
    WrongTypeError
        If a field has a value of another type; the message names the field.
    """
    for each in fields(options):
        kinds = [_FIELD_TYPES.get(name) for name in str(each.type).split(" | ")]
        allowed = [kind for kind in kinds if kind is not None]
        if len(allowed) < len(kinds):
            continue
        given = getattr(options, each.name)
        # True is a whole number to Python.
        is_flag = isinstance(given, bool) and not any(kind is bool for kind, _ in allowed)
        if is_flag or not isinstance(given, tuple(kind for kind, _ in allowed)):
            words = " or ".join(said for _, said in allowed)
            raise WrongTypeError(f"{each.name} is {type_text(given)}; allowed is {words}")


def require_type(name: str, given: object, allowed: type | tuple[type, ...], advice: str) -> None:
    """Refuse an argument of another type.

    Parameters
    ----------
    name : of the parameter.
    advice : what is allowed, in words.

    Raises
    ------
    WrongTypeError
        If the argument is an instance of none of the types.
    """
    if not isinstance(given, allowed):
        raise WrongTypeError(f"{name} is {type_text(given)}; allowed is {advice}")


def require_function(name: str, given: object, *, may_be_none: bool = False) -> None:
    """Refuse an argument that is no function.

    Raises
    ------
    WrongTypeError
        If the argument cannot be called.
    """
    if not callable(given) and not (may_be_none and given is None):
        allowed = "a function or None" if may_be_none else "a function"
        raise WrongTypeError(f"{name} is {type_text(given)}; allowed is {allowed}")


def name_list(name: str, given: Any) -> tuple[str, ...]:
    """A sequence of names; one string is refused, of which each letter would be taken for a name.

    Raises
    ------
    WrongTypeError
        If it is a string, or holds what is no string.
    """
    if isinstance(given, str):
        raise WrongTypeError(
            f"{name} is the string {given!r}; allowed is a list of names, such as [{given!r}]"
        )
    require_type(name, given, (Sequence, set, frozenset), "a list of names")
    for each in given:
        require_type(f"an entry of {name}", each, str, "a name, as a string")
    return tuple(given)


def joined_names(name: str, given: str | Sequence[str], error: type[Exception]) -> str:
    """Names with commas between: text as it is given, or a list of names.

    Raises
    ------
    WrongTypeError
        If it is neither.
    error
        If the list is empty.
    """
    if isinstance(given, str):
        return given
    names = name_list(name, given)
    if not names:
        raise error(f"{name} is an empty list; name at least one")
    return ",".join(names)


def type_text(given: object) -> str:
    """Return the type of a value in words, or a string itself, shortened."""
    if isinstance(given, str):
        return f"the string {given[:60]!r}"
    if given is None:
        return "None"
    kind = type(given)
    where = "" if kind.__module__ in ("builtins", "__main__") else f"{kind.__module__}."
    return f"of type {where}{kind.__qualname__}"
