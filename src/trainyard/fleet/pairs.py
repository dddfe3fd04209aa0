"""Options of policies that say something of some virtual clusters: pairs, which the command line can give."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from trainyard.fleet.errors import FleetError


def check_pairs(option: str, given: object, allowed: str, is_allowed: Callable[[Any], bool]) -> None:
    """Whether an option is pairs of the name of a virtual cluster and a value, each cluster once.

    Parameters
    ----------
    option : what errors call it.
    allowed, is_allowed : values, in words and as a test.

    Raises
    ------
    FleetError
        If it is anything else.
    """
    pairs = given if isinstance(given, tuple) else (given,)
    names = []
    for pair in pairs:
        if not (
            isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[0], str) and is_allowed(pair[1])
        ):
            raise FleetError(
                f"{option}: {pair!r} is no pair of a virtual cluster and {allowed}; give a tuple of such pairs, "
                "(('NAME', VALUE),)"
            )
        if pair[0] in names:
            raise FleetError(f"{option}: virtual cluster {pair[0]!r} is there twice; give each once")
        names.append(pair[0])
