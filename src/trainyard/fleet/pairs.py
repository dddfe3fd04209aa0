"""Options of policies for some virtual clusters, users or accounts: pairs of a name and a value."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainyard.fleet.errors import FleetError

__all__ = ["check_pairs", "check_weights", "weights_of"]


def check_pairs(
    option: str, given: object, allowed: str, is_allowed: Callable[[Any], bool], of: str = "virtual cluster"
) -> None:
    """Check that an option is pairs of a name and a value, each name once.

    Parameters
    ----------
    option : what errors call it.
    allowed, is_allowed : values, in words and as a test.
    of : kind of the names, such as "user".

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
                f"{option}: {pair!r} is no pair of {_article(of)} {of} and {allowed}; give a tuple of such pairs, "
                "(('NAME', VALUE),)"
            )
        if pair[0] in names:
            raise FleetError(f"{option}: {of} {pair[0]!r} is there twice; give each once")
        names.append(pair[0])


def check_weights(option: str, given: object, of: str = "virtual cluster") -> None:
    """Check that an option is pairs of a name and a weight from 1e-9 to 1e9; see `check_pairs`."""
    check_pairs(option, given, "a weight from 1e-9 to 1e9", _is_weight, of)


def weights_of(names: Iterable[str], pairs: Sequence[tuple[str, float]]) -> NDArray[np.float64]:
    """Return the weight of each name; 1 for names without one."""
    weights = dict(pairs)
    return np.array([weights.get(name, 1.0) for name in names], np.float64)


def _article(noun: str) -> str:
    return "an" if noun.startswith("a") else "a"


def _is_weight(weight: object) -> bool:
    return isinstance(weight, int | float) and not isinstance(weight, bool) and 1e-9 <= weight <= 1e9
