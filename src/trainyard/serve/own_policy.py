"""Policies in a user's own Python file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, get_args

from trainyard.serve.errors import ServeError
from trainyard.serve.policy import Repeats
from trainyard.user_file import named_in_file

__all__ = ["OwnPolicy", "decision_of"]

_BATCHES, _ADMISSION = (
    ("repeats", "start", "decide"),
    ("in_order", "start", "begin", "next", "admitted", "end"),
)
_ADVICE = "it must define what stands after the colon, a policy or what makes one from options"


@dataclass(frozen=True)
class OwnPolicy:
    """A policy in a Python file.

    Attributes
    ----------
    name : ``FILE.py:NAME``, where the file defines NAME as a policy, or as a class or function that makes one.
    """

    name: str

    @property
    def factory(self) -> Callable[..., Any]:
        """The class or function that makes the policy. The file is executed.

        Raises
        ------
        ValueError
            If there is no such file, or it does not define the name.
        """
        return named_in_file(self.name, _ADVICE, _may_be_meant, ServeError)


def _may_be_meant(thing: Any) -> bool:
    return hasattr(thing, "decide") or hasattr(thing, "next")


def decision_of(name: str, made: Any) -> Literal["batches", "admission"]:
    """Whether a user's own object is a batch policy or an admission.

    Raises
    ------
    ServeError
        If it is neither, or does not say when it repeats a batch.
    """
    if all(hasattr(made, part) for part in _BATCHES):
        if made.repeats not in get_args(Repeats):
            allowed = ", ".join(map(repr, get_args(Repeats)))
            raise ServeError(f"{name}: repeats is {made.repeats!r}; allowed are {allowed}")
        return "batches"
    if all(hasattr(made, part) for part in _ADMISSION):
        return "admission"
    meant = _ADMISSION if hasattr(made, "next") else _BATCHES
    missing = [part for part in meant if not hasattr(made, part)]
    raise ServeError(
        f"{name} is no policy: {type(made).__name__} has no {', no '.join(missing)}; a batch policy has "
        f"{', '.join(_BATCHES)}, and an admission {', '.join(_ADMISSION)}"
    )
