"""Which jobs can run on a cluster at all, under a policy: what they ask for is there, and it is heeded."""

from __future__ import annotations

import numpy as np

from trainyard.fleet.errors import FleetError, UnfitJobError
from trainyard.fleet.place.auxiliary import asks_for_more, check_there_is, most_together, needs_of
from trainyard.fleet.traits import Wish
from trainyard.fleet.workload.job import Job
from trainyard.hardware.cluster import Cluster
from trainyard.reading import shown

_NO_TYPE = "it asks for a type of device that there is not"


class Feasibility:
    """Check whether jobs can ever run on a cluster.

    Parameters
    ----------
    supports : wishes of jobs that the policy supports.

    Attributes
    ----------
    has_gangs, has_askers : whether a job came that has workers, or that asks for processors or memory which are counted.

    Raises
    ------
    FleetError
        If there are partitions or reservations, and the policy does not support them.
    """

    def __init__(self, cluster: Cluster, supports: frozenset[Wish]) -> None:
        self.cluster, self.supports = cluster.whole, supports
        self.has_gangs = self.has_askers = False
        self._known: dict[tuple[tuple[str, ...], int], tuple[int, int]] = {}
        self._most: dict[tuple[tuple[float, float], int], list[float]] = {}
        if cluster.partitions and "partition" not in supports:
            raise FleetError(
                f"the policy gives jobs devices of any node, and cluster {cluster.name!r} has partitions; leave these "
                "out, or take a policy that puts jobs in an order, such as fifo, srtf, las or tiresias"
            )
        if cluster.reservations and "reservation" not in supports:
            raise FleetError(
                f"the policy knows no reservations, and cluster {cluster.name!r} has some; leave these out, take "
                "fifo(backfill='easy') or fifo(backfill='conservative'), or write nodes that leave and come for all jobs "
                "under changes"
            )

    def of(self, job: Job) -> int:
        """The types of device that a job can run on, as bits by their index.

        Raises
        ------
        UnfitJobError
            If it can never run here as it asks to.
        """
        partition = self.cluster.partition_index(job.virtual_cluster)
        if self.cluster.partitions and job.virtual_cluster and not partition:
            names = ", ".join(name for name, _ in self.cluster.partitions)
            raise UnfitJobError(
                "its partition has no nodes in the cluster",
                f"job {job.name!r} is of partition {shown(job.virtual_cluster)}; cluster {self.cluster.name!r} has "
                f"{names}. Write it under partitions, or leave the job out",
            )
        asked = job.device_types, partition
        if asked not in self._known:
            self._known[asked] = self._allowed(*asked)
        bits, most = self._known[asked]
        if job.least_devices > most:
            kind, there = " or ".join(job.device_types) or "one type", ", ".join(self.cluster.device_types)
            raise UnfitJobError(
                "it asks for more devices of one type than there are" if most else _NO_TYPE,
                f"job {job.name!r} asks for {job.least_devices} devices of {kind}; cluster {self.cluster.name!r} has "
                f"{most}, its types are {there}. Take another cluster, or leave the job out",
            )
        if job.pinned_cell and "pinned cell" not in self.supports:
            raise UnfitJobError(
                "it asks for a pinned cell, and the policy knows no cells",
                f"job {job.name!r} asks for the pinned cell {job.pinned_cell!r}, and the policy knows no cells. Leave "
                "pinned_cell out, or take a policy of cells",
            )
        if job.gang and "gang" not in self.supports:
            self._check_workers(job, bits, partition)
        if asks_for_more(job, self.cluster):
            needs = needs_of(job), partition
            if needs not in self._most:
                self._most[needs] = most_together(self.cluster, *needs)
            check_there_is(job, bits, self._most[needs], self.cluster)
        return bits

    def note(self, job: Job) -> None:
        """A job comes."""
        self.has_gangs = self.has_gangs or bool(job.gang)
        self.has_askers = self.has_askers or asks_for_more(job, self.cluster)

    def _allowed(self, device_types: tuple[str, ...], partition: int) -> tuple[int, int]:
        """Types of device as bits, and how many devices there are of the most frequent of them."""
        cluster, bits = self.cluster, self.cluster.type_bits(device_types)
        there = np.bincount(cluster.type_of_node, cluster.devices_per_node * cluster.members[partition])
        return bits, max((int(count) for kind, count in enumerate(there) if bits >> kind & 1), default=0)

    def _check_workers(self, job: Job, bits: int, partition: int) -> None:
        """Whether the workers of a gang have room, each on one node, and are placed so.

        Raises
        ------
        UnfitJobError
            If not.
        """
        workers, size = "+".join(map(str, job.gang)), job.gang[0]
        asks = f"job {job.name!r} asks for workers of {workers} devices, each on one node"
        if "equal workers" not in self.supports:
            raise UnfitJobError(
                "it has workers that lie on one node each, which the policy does not support",
                f"{asks}, and the policy gives devices without regard to that. Leave gang out, or take another policy",
            )
        if len(set(job.gang)) > 1:
            raise UnfitJobError(
                "it has workers of several sizes, which the policy cannot place",
                f"{asks}; the policy places workers of one size only. Make them equal",
            )
        if size < 1 or size * len(job.gang) != job.num_devices:
            raise UnfitJobError(
                "its workers have not as many devices together as it has",
                f"{asks}; together these are not its {job.num_devices} devices",
            )
        room = [0] * len(self.cluster.device_types)
        sizes = self.cluster.devices_per_node * self.cluster.members[partition]
        for kind, there in zip(self.cluster.type_of_node.tolist(), sizes.tolist(), strict=True):
            room[kind] += there // size
        if not any(bits >> kind & 1 and count >= len(job.gang) for kind, count in enumerate(room)):
            raise UnfitJobError(
                "it has workers that lie on one node each, and nodes are too small for that",
                f"{asks}; cluster {self.cluster.name!r} has no nodes of one type with room for all. Make them smaller, "
                "or take another cluster",
            )
