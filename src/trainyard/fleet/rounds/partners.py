"""Jobs that share devices for a round: who with whom, on which devices, and what becomes of one whose partner leaves."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from trainyard.fleet.allocation import Placed
from trainyard.fleet.mechanism.allocator import Allocator
from trainyard.fleet.place.together import seats

Ints = NDArray[np.int64]


class Partners:
    """Pairs of jobs that have the same devices.

    Attributes
    ----------
    of : row of the partner of every row that has one.
    """

    def __init__(self, allocator: Allocator) -> None:
        self.allocator, self.table = allocator, allocator.table
        self.of: dict[int, int] = {}

    def serial(self, rows: Ints) -> Ints:
        """Serial numbers of the partners of jobs; -1 for none."""
        partners = np.array([self.of.get(row, -1) for row in rows.tolist()], np.int64)
        return np.where(partners < 0, -1, self.table.serial[partners])

    def place(self, rows: Ints, order: Ints, device_type: Ints, partners: Ints | None) -> Placed:
        """Devices for everybody, so that partners have the same ones.

        Parameters
        ----------
        rows : of the snapshot that the order is of.
        order, device_type : jobs of which nobody shares yet, and the type of each.
        partners : number of the job that shares the devices of each; -1 for none, None where nobody shares.
        """
        table, own = self.table, rows[order]
        partners = np.full(len(own), -1) if partners is None else partners
        others = np.where(partners < 0, -1, rows[partners])
        pairs = list(zip(own.tolist(), others.tolist(), strict=True))
        had = [
            [grant.devices for row in pair if row >= 0 and (grant := table.grants[row]) is not None]
            for pair in pairs
        ]
        cluster, how = self.allocator.cluster, self.allocator.how
        devices = seats(cluster, how, table.num_devices[own], device_type, had)
        shared = [place for place, given in enumerate(devices) if given and pairs[place][1] >= 0]
        self.of = {row: other for place in shared for row, other in (pairs[place], pairs[place][::-1])}
        order = np.concatenate((order, partners[shared]))
        shares = np.array([self._share(row) for row in rows[order].tolist()])
        return Placed(order, devices + [devices[place] for place in shared], shares)

    def _share(self, row: int) -> float:
        """Share of its devices that a job gets."""
        partner = self.of.get(row)
        return 1.0 if partner is None else self.table.job(row).share_beside(self.table.job(partner))

    def resumed(self, row: int) -> None:
        """A job goes on with devices that it had before this run; it may share them with one that does so, too."""
        grant = self.table.grants[row]
        for other in self.table.active.tolist():
            beside = self.table.grants[other]
            if grant is not None and beside is not None and self.table.job(other).name in grant.partners:
                self.of |= {row: other, other: row}

    def parted(self, row: int, now_s: float) -> list[int]:
        """A job has left its devices: who had them with it has them alone until the round ends.

        Returns
        -------
        Rows of those whose speed changes by that.
        """
        partner = self.of.pop(row, None)
        if partner is None:
            return []
        del self.of[partner]
        grant = self.table.grants[partner]
        assert grant is not None, "partners have devices as long as they are partners"
        self.allocator.rates.regranted(partner, grant._replace(share=1.0, partners=()), now_s)
        return [partner]
