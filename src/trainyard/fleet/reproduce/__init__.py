"""Published numbers of policies beside ours, for ``trainyard reproduce``.

Every policy of the catalog has a module here, named as its entry, that declares ``TABLES``. What ours stand beside is
an example of the paper, what the authors' program prints, or a closed form with its source; the caption says which. Jobs
are stated where they are few, or drawn from a seed; where only files of the authors' will do, a table says how to fetch
them.
"""

from __future__ import annotations

from importlib import import_module

from trainyard.fleet.catalog import find
from trainyard.published import PaperTable

__all__ = ["paper_tables"]


def paper_tables(name: str) -> tuple[PaperTable, ...]:
    """The tables of a policy, at least one; nothing is computed yet.

    Parameters
    ----------
    name : of a catalog entry. Only its module is imported.

    Raises
    ------
    FleetError
        If there is no such entry; the message lists the known ones.

    Examples
    --------
    >>> [table.source for table in paper_tables("elasticflow")]
    ['Gu et al., ASPLOS 2023, section 4.1, example of progressive filling']
    """
    tables: tuple[PaperTable, ...] = import_module(f"{__name__}.{find(name).name}").TABLES
    return tables
