"""The error every function of this package raises for input it cannot use."""

from __future__ import annotations

from collections.abc import Iterable

from trainyard.errors import TrainyardError
from trainyard.reading import shown

__all__ = ["HardwareError", "unknown_name"]


class HardwareError(TrainyardError, ValueError):
    """A description of hardware that cannot be used: what was given, what is allowed, what to do."""


def unknown_name(what: str, given: object, known: Iterable[str], advice: str) -> HardwareError:
    """Error for a name that is not in a list, naming the list.

    Parameters
    ----------
    what
        The kind of thing, e.g. ``"device"``.
    given
        What was asked for.
    known
        The names that exist.
    advice
        What to do about it.

    Returns
    -------
    HardwareError
        The error to raise.
    """
    return HardwareError(f"unknown {what} {shown(given)}; known: {', '.join(sorted(known))}; {advice}")
