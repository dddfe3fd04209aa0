"""Columns of a snapshot: a fact of all its jobs, computed when it is first read."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any, TypeVar

from trainyard.fleet.known import require

__all__ = ["Column"]

_Found = TypeVar("_Found")


class Column(cached_property[_Found]):
    """A fact of all jobs in a snapshot, by their number; computed when it is first read.

    Parameters
    ----------
    said : a sentence that describes the fact.
    find : computes the fact; by default it is the column of the same name in the job table.
    needs : needs that a policy must declare to read the column.
    """

    def __init__(
        self, said: str, find: Callable[[Any], _Found] | None = None, needs: tuple[str, ...] = ()
    ) -> None:
        super().__init__(self._read)
        self._find, self._needs = find, needs
        asked = " and ".join(f'"{need}"' for need in needs)
        self.__doc__ = f"{said.removesuffix('.')}; needs {asked}." if needs else said

    def _read(self, snapshot: Any) -> _Found:
        for need in self._needs:
            require(need, snapshot.needs)
        if self._find is not None:
            return self._find(snapshot)
        column: _Found = getattr(snapshot._table, self.attrname or "")[snapshot.rows]
        return column
