"""A policy of the user's own: a name in a Python file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, get_args

from trainyard.fleet.errors import FleetError
from trainyard.fleet.policy import Policy
from trainyard.fleet.snapshot import Need
from trainyard.user_file import named_in_file

_PARTS = ("needs", "preempts", "start", "decide")
_ADVICE = "it must define what stands after the colon, a policy or what makes one from options"


@dataclass(frozen=True)
class OwnPolicy:
    """A policy in a file of the user, and what it runs with by default.

    Attributes
    ----------
    name : ``FILE.py:NAME``, where the file defines NAME as a policy, or as a class or function that makes one.
    place : as of an entry of the catalog.
    """

    name: str
    place: str = "consolidated"

    @property
    def factory(self) -> Callable[..., Any]:
        """Return what makes the policy. The file is run.

        Raises
        ------
        ValueError
            If there is no such file, or it does not define the name.
        """
        return named_in_file(self.name, _ADVICE, lambda thing: hasattr(thing, "decide"), FleetError)


def checked_policy(name: str, made: Any) -> Policy:
    """Return the policy that a name stands for.

    Raises
    ------
    FleetError
        If it is no policy because an attribute is missing, or it has an unknown need.
    """
    missing = [part for part in _PARTS if not hasattr(made, part)]
    if missing:
        raise FleetError(
            f"{name} is no policy: {type(made).__name__} has no {', no '.join(missing)}; a policy has "
            f"{', '.join(_PARTS)}, see trainyard.fleet.policy"
        )
    policy: Policy = made
    if not isinstance(policy.needs, frozenset) or not policy.needs <= set(get_args(Need)):
        raise FleetError(
            f"needs of {name} are {policy.needs!r}; it may be a frozenset of {', '.join(get_args(Need))}"
        )
    return policy
