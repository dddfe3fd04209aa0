"""Check what a caller in Python gives: a wrong type is refused by the name of the parameter, before any work starts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trainyard.errors import TrainyardError

__all__ = ["WrongTypeError", "joined_names", "name_list", "require_type"]


class WrongTypeError(TrainyardError, TypeError):
    """An argument of a wrong type; the message names the parameter and what is allowed."""


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
        raise WrongTypeError(f"{name} is {_described(given)}; allowed is {advice}")


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


def _described(given: object) -> str:
    """A value with its type, shortened."""
    if isinstance(given, str):
        return f"the string {given[:60]!r}"
    if given is None:
        return "None"
    kind = type(given)
    where = "" if kind.__module__ in ("builtins", "__main__") else f"{kind.__module__}."
    return f"of type {where}{kind.__qualname__}"
