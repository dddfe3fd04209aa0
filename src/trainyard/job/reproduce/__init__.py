"""The papers' numbers beside ours, for ``trainyard reproduce``.

Every system of the catalog has a module here, named as its entry, that declares ``TABLES``: what the paper prints,
and how ours are computed. A number is here only if it is in the paper; ours are formulas that the claim tests hold
against lowered plans, counts on the models that are planned, dry runs of schedules, or simulated plans.
"""

from __future__ import annotations

from importlib import import_module

from trainyard.job.catalog import find
from trainyard.published import PaperTable

__all__ = ["paper_tables"]


def paper_tables(name: str) -> tuple[PaperTable, ...]:
    """The tables of a system, at least one; nothing is computed yet.

    Parameters
    ----------
    name : of a catalog entry. Only its module is imported.

    Raises
    ------
    PlanError
        If there is no such entry; the message lists the known ones.

    Examples
    --------
    >>> [table.source for table in paper_tables("zero")]
    ['arXiv 1910.02054, table 1']
    """
    tables: tuple[PaperTable, ...] = import_module(f"{__name__}.{find(name).name}").TABLES
    return tables
