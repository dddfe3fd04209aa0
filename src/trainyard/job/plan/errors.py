"""Errors in a plan."""

from __future__ import annotations

from trainyard.errors import TrainyardError


class PlanError(TrainyardError, ValueError):
    """A plan that cannot run; the message says which part of it, and what would be allowed."""


class DoesNotFitError(PlanError):
    """No plan that was found fits the memory of the devices; the message says what is short."""


def require(condition: bool, message: str) -> None:
    """Refuse a plan unless a condition holds.

    Raises
    ------
    PlanError
        With the message.
    """
    if not condition:
        raise PlanError(message)
