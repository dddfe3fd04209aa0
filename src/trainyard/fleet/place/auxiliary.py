"""Processors and memory of nodes: what jobs hold beside devices, as far as the nodes say what they have.

A job that does not ask for more or less holds a proportional share with every device, so these bind only where some job
does ask; until then nothing is counted.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from trainyard.fleet.place.free import FreeDevices
from trainyard.fleet.place.pools import pool_for
from trainyard.fleet.site import FleetError, Site
from trainyard.fleet.workload.job import Grant, Job

__all__ = ["Auxiliary", "as_asked"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
# Shares that add up to what there is leave a rounding error.
_SLACK = 1e-9


def as_asked(job: Job, grant: Grant) -> Grant:
    """A grant of devices with the processors and the memory that the job asks for with as many."""
    part = grant.num_devices / job.num_devices
    return grant._replace(cpus=job.cpus * part, memory_bytes=job.memory_bytes * part)


class Auxiliary:
    """What nobody has yet of processors and memory, and who has the rest.

    Parameters
    ----------
    site : whose nodes are all there.
    """

    def __init__(self, site: Site) -> None:
        has = np.array([(host.cpus, host.memory_bytes) for host in site.hosts], np.float64)
        self._site, self._sizes = site, site.devices_per_node
        self._share = has / self._sizes[:, None]
        # What a node does not say that it has, it has enough of.
        self._has = np.where(has > 0, has, np.inf)
        self._free = self._has.copy()
        self._held: dict[int, tuple[Ints, Floats]] = {}

    @staticmethod
    def is_asked(job: Job, site: Site) -> bool:
        """Whether a job asks for something that nodes say that they have."""
        says_cpus, says_memory = site.says
        return bool(job.cpus and says_cpus) or bool(job.memory_bytes and says_memory)

    def check(self, job: Job, allowed: int) -> None:
        """Whether a job can ever have what it asks for.

        Parameters
        ----------
        allowed : types of device that it can run on, as bits by their index.

        Raises
        ------
        FleetError
            If it cannot.
        """
        most = np.bincount(self._site.type_of_node, self._devices(self._has, job))
        if not any(most[kind] >= job.least_devices and allowed >> kind & 1 for kind in range(len(most))):
            asked = [f"{job.cpus:g} processors"] * (job.cpus > 0)
            asked += [f"{job.memory_bytes / 1e9:g} GB of memory"] * (job.memory_bytes > 0)
            raise FleetError(
                f"job {job.name!r} asks for {job.num_devices} devices with {' and '.join(asked)}; no nodes of one type "
                f"of cluster {self._site.name!r} have that together. Ask for less, or take larger nodes"
            )

    def place(
        self,
        free: FreeDevices,
        jobs: Sequence[tuple[int, Job]],
        asked: Sequence[Ints],
        how: int,
        goes_on: bool,
    ) -> tuple[Ints, list[tuple[int, ...]]]:
        """Take devices for jobs as `FreeDevices.place` does, and what they need with them.

        Parameters
        ----------
        jobs : with their rows.
        asked : the devices wanted, kinds, allowed types and placements of each.
        """
        left, numbers, given = free.by_type.copy(), list[int](), list[tuple[int, ...]]()
        for number, (row, job) in enumerate(jobs):
            wanted, kinds, allowed, hows = (each[number : number + 1] for each in asked)
            # It sees the devices with which it has what it needs.
            seen = free.offering(self._devices(self._free, job), self._devices(self._has, job), left)
            pool = pool_for(seen.by_type, wanted[0], kinds[0] if len(kinds) else -1, allowed[0])
            placed, devices = seen.place(wanted, kinds, allowed, hows, how, goes_on)
            if len(placed):
                numbers.append(number)
                given += devices
                free.take_these(devices[0])
                self.take(row, job, devices[0])
                pool = free.kind_of[devices[0][0]]
            elif wanted[0] and not goes_on:
                break
            if wanted[0] and pool >= 0:
                left[pool] -= wanted[0]
        return np.array(numbers, np.int64), given

    def _devices(self, there: Floats, job: Job) -> Ints:
        """Devices of every node with which a job has what it needs of what is there."""
        needs = self._needs(job)
        with np.errstate(divide="ignore", invalid="ignore"):
            fit = np.where(needs > 0, there * (1 + _SLACK) / needs, np.inf)
        count: Ints = np.minimum(np.floor(np.maximum(fit, 0.0).min(axis=1)), self._sizes).astype(np.int64)
        return count

    def _needs(self, job: Job) -> Floats:
        """Of each kind with each device, by node."""
        asked = np.array((job.cpus, job.memory_bytes)) / job.num_devices
        return np.where(asked > 0, asked, self._share)

    def take(self, row: int, job: Job, devices: Sequence[int]) -> None:
        """A job gets devices, and what it needs with them; the row names it when it leaves."""
        nodes = self._site.node_of[list(devices)]
        needs = self._needs(job)[nodes]
        self._held[row] = nodes, needs
        np.subtract.at(self._free, nodes, needs)

    def give(self, row: int) -> None:
        """The job has lost its devices."""
        if row in self._held:
            nodes, needs = self._held.pop(row)
            np.add.at(self._free, nodes, needs)
