"""A job on devices over time."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Span"]


@dataclass(frozen=True)
class Span:
    """A job on devices, from a grant to the next change.

    Attributes
    ----------
    devices : their numbers in the cluster.
    """

    job: str
    start_s: float
    end_s: float
    devices: tuple[int, ...]
