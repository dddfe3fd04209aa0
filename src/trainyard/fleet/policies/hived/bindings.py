"""Which virtual cell is which physical cell, and which job is where; bound when jobs start, free when they end.

References
----------
H. Zhao et al., "HiveD: Sharing a GPU Cluster for Deep Learning with Guarantees", OSDI 2020, section 3.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from trainyard.fleet.policies.hived.cells import Cell, Free, find, least_crowded, release, shortage, take
from trainyard.fleet.policies.hived.virtual import Ints, Layout, VirtualCell
from trainyard.hardware.cluster import Bools

FREE, OPPORTUNISTIC = -2, -1
"""Priorities of a place that nobody has, and of an opportunistic job."""


class Held(NamedTuple):
    """Places of a job in the layout, and the devices there, ascending."""

    places: tuple[int, ...]
    devices: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Bound:
    """All bindings, at one moment.

    Attributes
    ----------
    free : physical cells that no virtual cell is bound to, by chain.
    cell_at : of every virtual cell, the index of the physical cell that it is bound to; -1 if to none.
    place_of : of every virtual place the place; -1 if no job is there.
    virtual_of, priority, holder : of every place, its virtual place, or -1; the priority and the serial number of the
        job there, or `FREE` and -1.
    jobs : by serial number.
    """

    layout: Layout
    free: tuple[Free, ...]
    cell_at: Ints
    place_of: Ints
    virtual_of: Ints
    priority: Ints
    holder: Ints
    jobs: Mapping[int, Held]

    @classmethod
    def none(cls, layout: Layout) -> Bound:
        """Only pinned cells are bound."""
        num_places, num_virtual = layout.first_place[-1], layout.first_virtual[-1]
        return cls(
            layout,
            layout.free,
            np.array([cell.at for cell in layout.virtual_cells], np.int64),
            np.full(num_virtual, -1),
            np.full(num_places, -1),
            np.full(num_places, FREE),
            np.full(num_places, -1),
            {},
        )


class Bindings:
    """Bindings while a decision is made; what they are made from stays as it was.

    Parameters
    ----------
    lost : whether every place cannot be used now; it is bound only where there is no choice.
    """

    def __init__(self, before: Bound, lost: Bools) -> None:
        self.lost = lost
        self.layout, self.free, self.jobs = before.layout, list(before.free), dict(before.jobs)
        self.cell_at, self.place_of = before.cell_at.copy(), before.place_of.copy()
        self.virtual_of, self.priority = before.virtual_of.copy(), before.priority.copy()
        self.holder = before.holder.copy()

    def frozen(self) -> Bound:
        """Return the bindings as they are now."""
        return Bound(
            self.layout,
            tuple(self.free),
            self.cell_at,
            self.place_of,
            self.virtual_of,
            self.priority,
            self.holder,
            self.jobs,
        )

    def virtual_priority(self) -> Ints:
        """Priority of the job at every virtual place."""
        return np.where(self.place_of >= 0, self.priority[self.place_of], FREE)

    def holders(self, virtual_places: Sequence[int]) -> list[int]:
        """Jobs that have guarantees on virtual places."""
        places = self.place_of[list(virtual_places)]
        return sorted({int(serial) for serial in self.holder[places[places >= 0]]})

    def start(self, serial: int, places: Sequence[int], priority: int) -> None:
        """A job is on places, which are free; on those that are bound it has the guarantee."""
        at = list(places)
        self.priority[at], self.holder[at] = priority, serial
        self.jobs[serial] = Held(tuple(at), tuple(sorted(self.layout.device_at[at].tolist())))

    def guarantee(self, serial: int, virtual_places: Sequence[int], priority: int) -> list[int]:
        """Bind virtual places, which are free, to places, and put a job there.

        Returns
        -------
        Opportunistic jobs that had to leave.
        """
        places, left = [], []
        for virtual in virtual_places:
            place = self._place_for(virtual)
            holder = int(self.holder[place])
            if holder >= 0:
                self.end(holder)
                left.append(holder)
            self.place_of[virtual], self.virtual_of[place] = place, virtual
            places.append(place)
        self.start(serial, places, priority)
        return left

    def end(self, serial: int) -> Held:
        """A job leaves; virtual cells in which no job is left are no longer bound."""
        held = self.jobs.pop(serial)
        at = list(held.places)
        virtual = self.virtual_of[at]
        self.place_of[virtual[virtual >= 0]] = -1
        self.virtual_of[at], self.priority[at], self.holder[at] = -1, FREE, -1
        for number in np.unique(self.layout.owner_of[virtual[virtual >= 0]]).tolist():
            cell, (first, last) = self.layout.virtual_cells[number], self.layout.first_virtual[number:][:2]
            if not cell.pinned and np.all(self.place_of[first:last] < 0):
                chain = self.layout.chains[cell.chain]
                was = Cell(cell.level, int(self.cell_at[number]))
                self.free[cell.chain] = release(chain, self.free[cell.chain], was)
                self.cell_at[number] = -1
        return held

    def give_up(self, serial: int) -> None:
        """A job stays where it is, without a guarantee."""
        self.start(serial, self.end(serial).places, OPPORTUNISTIC)

    def _crowded(self, chain: int) -> Ints:
        """Return how unsuitable each place of a chain is: more with an opportunistic job, most if it is lost."""
        first, last = self.layout.first_place[chain : chain + 2]
        lost = self.lost[first:last]
        crowded: Ints = (self.priority[first:last] == OPPORTUNISTIC) + lost * len(lost)
        return crowded

    def _place_for(self, virtual: int) -> int:
        """The place that a virtual place is bound to: its cell's, or a part of that as the virtual cell's parts are.

        Where there is a choice, places that are lost are avoided, then opportunistic jobs.
        """
        number = int(self.layout.owner_of[virtual])
        cell, origin = self.layout.virtual_cells[number], self.layout.first_virtual[number]
        chain, base = self.layout.chains[cell.chain], self.layout.first_place[cell.chain]
        crowded = self._crowded(cell.chain)
        if self.cell_at[number] < 0:
            self._bind_cell(number, crowded)
        at = Cell(cell.level, int(self.cell_at[number]))
        for size in reversed(chain.sizes[: cell.level]):
            start = origin + (virtual - origin) // size * size
            bound = self.place_of[start : start + size]
            bound = bound[bound >= 0]
            if len(bound):  # another place of this part has a place: the part is bound already
                at = Cell(at.level - 1, int(bound[0] - base) // size)
                continue
            parts = [p.number for p in chain.children(at) if not self._is_bound(base, chain.slots(p))]
            at = least_crowded(chain, at.level - 1, parts, crowded)
        return base + at.number

    def _bind_cell(self, number: int, crowded: Ints) -> None:
        """Bind a virtual cell to a physical one that is free."""
        cell = self.layout.virtual_cells[number]
        chain, free = self.layout.chains[cell.chain], self.free[cell.chain]
        found = self._cell_without_lost_places(cell, crowded) or find(chain, free, cell.level, crowded)
        assert found is not None, "there are enough cells at any time"
        left = take(chain, free, found)
        assert left is not None
        self.free[cell.chain], self.cell_at[number] = left, found.number

    def _cell_without_lost_places(self, cell: VirtualCell, crowded: Ints) -> Cell | None:
        """Find a free cell without lost places, also part of a larger one, if enough is left for all virtual clusters."""
        chain, free = self.layout.chains[cell.chain], self.free[cell.chain]
        if not self.lost.any():
            return None
        wanted = self._unbound(cell.chain)
        wanted[cell.level] -= 1
        for level in range(cell.level, len(free)):
            found = find(chain, ((),) * level + free[level:], cell.level, crowded)
            if found is not None and crowded[chain.slots(found)].max() <= 1:
                left = take(chain, free, found)
                if left is not None and shortage(chain, left, wanted) is None:
                    return found
        return None

    def _is_bound(self, base: int, slots: range) -> bool:
        return bool(np.any(self.virtual_of[base + slots.start : base + slots.stop] >= 0))

    def adopted(
        self, serial: int, places: Sequence[int], priority: int, mine: Sequence[int]
    ) -> Bindings | None:
        """The same with a job that runs already, if virtual cells can be bound to where it is.

        Parameters
        ----------
        mine : virtual cells that it may use.
        """
        for level in sorted({self.layout.virtual_cells[number].level for number in mine}):
            same = [number for number in mine if self.layout.virtual_cells[number].level == level]
            trial = Bindings(self.frozen(), self.lost)
            if all(trial._bind_to(place, level, same) for place in places):
                trial.start(serial, places, priority)
                return trial
        return None

    def _bind_to(self, place: int, level: int, mine: Sequence[int]) -> bool:
        """Bind some virtual place to a place; whether that can be, with enough cells left for everybody."""
        c = bisect_right(self.layout.first_place, place) - 1
        chain, slot = self.layout.chains[c], place - self.layout.first_place[c]
        own = [number for number in mine if self.layout.virtual_cells[number].chain == c]
        index = slot // chain.sizes[level] if level <= chain.top else -1
        found = [number for number in own if self.cell_at[number] == index]
        if not found:
            found = [number for number in own if self.cell_at[number] < 0]
            left = take(chain, self.free[c], Cell(level, index)) if found else None
            if left is None:
                return False
            self.free[c], self.cell_at[found[0]] = left, index
            if shortage(chain, left, self._unbound(c)) is not None:
                return False
        virtual = origin = self.layout.first_virtual[found[0]]
        for above, size in zip(
            reversed(chain.sizes[: level + 1]), reversed(chain.sizes[:level]), strict=False
        ):
            bound = self.virtual_of[place - slot % size :][:size]
            bound = bound[bound >= 0]
            if len(bound):
                virtual = origin + int(bound[0] - origin) // size * size
            else:
                parts = range(virtual, virtual + above, size)
                virtual = next(part for part in parts if np.all(self.place_of[part : part + size] < 0))
        self.place_of[virtual], self.virtual_of[place] = place, virtual
        return True

    def _unbound(self, chain: int) -> list[int]:
        """Virtual cells of every level of a chain that are bound to none."""
        cells = zip(self.layout.virtual_cells, self.cell_at.tolist(), strict=True)
        counts = Counter(cell.level for cell, at in cells if cell.chain == chain and at < 0)
        return [counts[level] for level in range(len(self.layout.chains[chain].sizes))]
