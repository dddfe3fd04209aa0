"""Placement on trial: what is free, as a policy may play it through, to see who would find a place after whom."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from trainyard.fleet.place.auxiliary import Asking, needs_of
from trainyard.fleet.place.find import FREE, TYPE, are_in_racks, count_as_taken, find_place, usable_nodes
from trainyard.fleet.place.free import Floats, FreeDevices
from trainyard.fleet.place.nodes import WORKER, Ints

ALL: Ints = np.zeros(0, np.int64)
"""Stands for all nodes, where nodes that a job may use are given."""


class Placeable(Asking, Protocol):
    """What placement has to know of a job."""

    @property
    def gang(self) -> tuple[int, ...]: ...


def place_key(job: Placeable, allowed: int, partition: int) -> tuple[object, ...]:
    """Return a key: jobs with the same key find the same places; see `TrialPlacement.find`."""
    return job.num_devices, allowed, partition, needs_of(job), job.gang


class TrialPlacement:
    """Devices of every node, and what comes with them; a copy, of which changes change nothing else.

    Parameters
    ----------
    free : what nobody has now.
    how : number of the placement of the run.
    inside : 1 for every node that the policy decides about, 0 for others.
    """

    def __init__(self, free: FreeDevices, how: int, inside: Ints) -> None:
        self._how = how
        _, nodes, by_type, auxiliary, self._members = free.tables
        nodes = nodes.copy()
        nodes[FREE] *= inside
        by_type = np.bincount(nodes[TYPE], nodes[FREE], len(by_type)).astype(np.int64)
        self._tables = nodes, by_type, auxiliary.copy()

    def copy(self) -> TrialPlacement:
        """The same once more."""
        found = object.__new__(TrialPlacement)
        nodes, by_type, auxiliary = self._tables
        found._how, found._members = self._how, self._members
        found._tables = nodes.copy(), by_type.copy(), auxiliary.copy()
        return found

    @property
    def tables(self) -> tuple[Ints, Floats, Ints]:
        """Return the tables of nodes, of their processors and memory, and of the nodes of every partition."""
        nodes, _, auxiliary = self._tables
        return nodes, auxiliary, self._members

    def how_of(self, job: Placeable) -> int:
        """Return the number of the placement of a job."""
        return self._how + WORKER * (job.gang[0] if job.gang else 0)

    def find(self, job: Placeable, allowed: int, partition: int, usable: Ints = ALL) -> Ints | None:
        """How many devices of every node a job would get; None if it has no place.

        Parameters
        ----------
        allowed : types of device that it can run on, as bits by their index.
        partition : index of its partition, 0 for none.
        usable : 1 for each node that it may have, else 0; by default all of its partition.
        """
        nodes, by_type, auxiliary = self._tables
        may_have, how = usable_nodes(partition, self._members, usable), self.how_of(job)
        asked = job.num_devices, allowed, may_have, how, np.array(needs_of(job))
        found: Ints = find_place(*asked, nodes, by_type, auxiliary, are_in_racks(nodes))
        return found if len(found) else None

    def most_free(self, allowed: Ints) -> Ints:
        """For each job, the most devices that are free of a type that it may have; these types are bits."""
        found = np.zeros(len(allowed), np.int64)
        for kind, count in enumerate(self._tables[1].tolist()):
            np.maximum(found, count * (allowed >> kind & 1), out=found)
        return found

    def take(self, taken: Ints, job: Placeable) -> None:
        """A job gets so many devices of every node."""
        count_as_taken(taken, np.array(needs_of(job)), 1, *self._tables)

    def give(self, taken: Ints, job: Placeable) -> None:
        """A job gives them back."""
        count_as_taken(taken, np.array(needs_of(job)), -1, *self._tables)
