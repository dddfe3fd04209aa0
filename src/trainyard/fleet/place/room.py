"""What is free as a policy may play it through: who would find a place, after whom."""

from __future__ import annotations

import numpy as np

from trainyard.fleet.place.free import (
    FreeDevices,
    are_in_racks,
    count_as_taken,
    find_place,
)
from trainyard.fleet.place.nodes import WORKER, Ints


class Room:
    """Devices of every node, and what comes with them; a copy, which changes nothing.

    Parameters
    ----------
    free : what nobody has now.
    how : number of the placement of the run.
    """

    def __init__(self, free: FreeDevices, how: int) -> None:
        self._how = how
        _, *tables = free.tables
        self._tables = [table.copy() for table in tables]

    def copy(self) -> Room:
        """The same once more."""
        found = object.__new__(Room)
        found._how, found._tables = self._how, [table.copy() for table in self._tables]
        return found

    def find(
        self, num_devices: int, allowed: int, needs: tuple[float, float], gang: tuple[int, ...]
    ) -> Ints | None:
        """How many devices of every node a job would get; None if it has no place.

        Parameters
        ----------
        allowed : types of device that it can run on, as bits by their index.
        needs : processors and bytes with each device; 0 for its share.
        gang : devices of its workers, if it has several.
        """
        how, (nodes, by_type, beside) = self._how + WORKER * (gang[0] if gang else 0), self._tables
        racks = are_in_racks(nodes)
        found: Ints = find_place(num_devices, allowed, how, np.array(needs), nodes, by_type, beside, racks)
        return found if len(found) else None

    def take(self, taken: Ints, needs: tuple[float, float]) -> None:
        """A job gets so many devices of every node."""
        count_as_taken(taken, np.array(needs), 1, *self._tables)

    def give(self, taken: Ints, needs: tuple[float, float]) -> None:
        """A job gives them back."""
        count_as_taken(taken, np.array(needs), -1, *self._tables)
