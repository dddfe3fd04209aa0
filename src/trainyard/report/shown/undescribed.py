"""The error of a result that no module of this package describes."""

from __future__ import annotations

__all__ = ["undescribed_error"]


def undescribed_error(shown: object) -> TypeError:
    """Return the error that is raised for a value of a type that is not registered."""
    return TypeError(
        f"trainyard.report.shown does not describe {type(shown).__name__}; register the type there"
    )
