"""Remarks on pages beside their figures."""

from __future__ import annotations

from collections.abc import Sequence

from trainyard.reading.left_out import LeftOut
from trainyard.report.page import Table

__all__ = ["remark_tables"]


def remark_tables(remarks: Sequence[str], left_out: LeftOut | None) -> list[Table]:
    """Return the remarks beside the figures, and the rows of the trace that were left out."""
    tables = []
    if said := (*remarks, *(left_out.remarks if left_out is not None else ())):
        tables.append(Table("Remarks", ("what",), tuple((each,) for each in said)))
    if left_out is not None and left_out.reasons:
        heading = f"Left out: {left_out.num_left_out:,} of {left_out.num_rows:,} rows of the trace"
        reasons = tuple((f"{each.count:,}", each.text, each.where) for each in left_out.reasons)
        tables.append(Table(heading, ("rows", "why", "where"), reasons))
    return tables
