"""The error of this level."""

from __future__ import annotations

__all__ = ["ServeError", "require_at_least"]


class ServeError(ValueError):
    """Something given to the serving level that cannot be; the message says what is allowed."""


def require_at_least(who: object, least: float, *names: str) -> None:
    """Refuse numbers of something, such as a policy, that are too small.

    Raises
    ------
    ServeError
        Names the first one.
    """
    for name in names:
        given = getattr(who, name)
        if not given >= least:  # NaN is not, either
            raise ServeError(f"{name} is {given}; allowed is {least:g} or more")
