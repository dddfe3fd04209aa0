"""Cells: devices in a hierarchy in which all cells of one level are alike, and their buddy allocation.

References
----------
H. Zhao et al., "HiveD: Sharing a GPU Cluster for Deep Learning with Guarantees", OSDI 2020. Section 3: cells;
algorithm 1: buddy cell allocation. The theorem on its safety: if the cells of all virtual clusters can be taken from the
cluster at first, every one of them can be taken at any time, whatever was taken and given back before.

Notes
-----
All cells of a level have the same shape, so a cell is a level and a number, and its place in the hierarchy follows by
division. What is free is an immutable value: ascending indices by level, of the largest cells that are free as a whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

Free = tuple[tuple[int, ...], ...]
"""Indices of the cells that are free, by level, ascending."""


class Cell(NamedTuple):
    """A cell of a chain; level 0 is a device."""

    level: int
    number: int


@dataclass(frozen=True)
class Chain:
    """The part of a cluster under top cells of one type.

    Attributes
    ----------
    names : types of its cells, by level; the first is the type of the devices.
    sizes : devices of a cell, by level; each is a multiple of the one before.
    node_level : level of the cells that are nodes.
    devices : numbers (in the cluster) of the devices, in the order of the hierarchy.
    """

    names: tuple[str, ...]
    sizes: tuple[int, ...]
    node_level: int
    devices: tuple[int, ...]

    @property
    def top(self) -> int:
        """The highest level."""
        return len(self.sizes) - 1

    @property
    def node_size(self) -> int:
        return self.sizes[self.node_level]

    @cached_property
    def all_free(self) -> Free:
        """Nothing is taken."""
        return ((),) * self.top + (tuple(range(len(self.devices) // self.sizes[-1])),)

    def slots(self, cell: Cell) -> range:
        """Places in the hierarchy of a cell's devices."""
        size = self.sizes[cell.level]
        return range(cell.number * size, (cell.number + 1) * size)

    def parent(self, cell: Cell) -> Cell:
        """The cell of which it is a part."""
        return Cell(cell.level + 1, cell.number * self.sizes[cell.level] // self.sizes[cell.level + 1])

    def children(self, cell: Cell) -> tuple[Cell, ...]:
        """Return the parts of a cell, which are buddies."""
        each = self.sizes[cell.level] // self.sizes[cell.level - 1]
        return tuple(Cell(cell.level - 1, cell.number * each + i) for i in range(each))


def least_crowded(chain: Chain, level: int, numbers: Sequence[int], crowded: Ints) -> Cell:
    """Return the least crowded cell of a level; the first of equal ones."""
    counts = crowded.reshape(-1, chain.sizes[level]).sum(axis=1)
    return Cell(level, numbers[int(counts[list(numbers)].argmin())])


def find(chain: Chain, free: Free, level: int, crowded: Ints) -> Cell | None:
    """A free cell of a level: one that is there, else a part of a larger one, which should be as small as it can.

    This is the choice of algorithm 1; `take` splits.

    Parameters
    ----------
    crowded : by place in the hierarchy, how little it suits, such as 1 where others would have to leave; cells with a
        small sum are preferred.

    Returns
    -------
    None if no free cell is large enough.
    """
    for at in range(level, len(free)):
        if free[at]:
            cell = least_crowded(chain, at, free[at], crowded)
            while cell.level > level:
                parts = [part.number for part in chain.children(cell)]
                cell = least_crowded(chain, cell.level - 1, parts, crowded)
            return cell
    return None


def take(chain: Chain, free: Free, cell: Cell) -> Free | None:
    """Return the free cells without one cell: larger cells that hold it are split, and its buddies are free.

    Returns
    -------
    None if the cell is not free as a whole.
    """
    lists = list(free)
    while cell.number not in lists[cell.level]:
        if cell.level == chain.top:
            return None
        parent = chain.parent(cell)
        buddies = (buddy.number for buddy in chain.children(parent) if buddy != cell)
        lists[cell.level] = tuple(sorted((*lists[cell.level], *buddies)))
        cell = parent
    lists[cell.level] = tuple(i for i in lists[cell.level] if i != cell.number)
    return tuple(lists)


def release(chain: Chain, free: Free, cell: Cell) -> Free:
    """Return the free cells with a cell given back: buddies that are all free are merged."""
    lists = list(free)
    while cell.level < chain.top:
        parent = chain.parent(cell)
        buddies = {buddy.number for buddy in chain.children(parent) if buddy != cell}
        if not buddies <= set(lists[cell.level]):
            break
        lists[cell.level] = tuple(i for i in lists[cell.level] if i not in buddies)
        cell = parent
    lists[cell.level] = tuple(sorted((*lists[cell.level], cell.number)))
    return tuple(lists)


def shortage(chain: Chain, free: Free, wanted: Sequence[int]) -> tuple[int, int] | None:
    """Whether cells can all be taken, whatever the order: the condition of the theorem.

    Parameters
    ----------
    wanted : number of cells of every level.

    Returns
    -------
    None if they can; else the highest level of which there are too few, and how many there are.
    """
    left = 0
    for level in range(chain.top, -1, -1):
        if level < chain.top:
            left *= chain.sizes[level + 1] // chain.sizes[level]
        left += len(free[level])
        if wanted[level] > left:
            return level, left
        left -= wanted[level]
    return None
