"""What a table of a paper is: where it is printed, how ours are computed, and how far they may be apart."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """One number of the paper.

    Attributes
    ----------
    label : which one.
    paper, ours : in the table's unit.
    """

    label: str
    paper: float
    ours: float

    @property
    def ratio(self) -> float:
        """Ours over the paper's."""
        return self.ours / self.paper


@dataclass(frozen=True)
class PaperTable:
    """Numbers of one paper beside ours.

    Attributes
    ----------
    source : the paper and its table, figure or section.
    unit : of both columns.
    method : how ours are computed.
    rows : computes them, one after the other.
    tolerance : largest relative difference between ours and the paper's that the tests accept.
    caveat : why they differ; empty only where the tolerance is for rounding.
    is_slow : whether the rows are simulated plans, which take seconds each.
    """

    source: str
    unit: str
    method: str
    rows: Callable[[], Iterable[Row]]
    tolerance: float = 0.03
    caveat: str = ""
    is_slow: bool = False
