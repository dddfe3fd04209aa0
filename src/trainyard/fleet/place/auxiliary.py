"""Processors and memory of nodes: what jobs hold beside devices, as far as the nodes say what they have.

A job that does not ask for more or less holds a proportional share with every device.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from trainyard.fleet.errors import UnfitJobError
from trainyard.fleet.place.free import FreeDevices
from trainyard.fleet.workload.job import Grant, Job
from trainyard.hardware.cluster import Cluster

__all__ = [
    "Asking",
    "allowed_nodes",
    "as_asked",
    "asks_for_more",
    "check_there_is",
    "memory_in_doubt",
    "most_together",
    "needs_of",
    "shares_by_type",
    "whole_nodes_in_doubt",
]

Floats = NDArray[np.float64]

_GIB_PER_GB = 2**30 / 1e9


def as_asked(job: Job, grant: Grant) -> Grant:
    """A grant of devices with the processors and the memory that the job asks for with as many."""
    part = grant.num_devices / job.num_devices
    return grant._replace(cpus=job.cpus * part, memory_bytes=job.memory_bytes * part)


def asks_for_more(job: Job, cluster: Cluster) -> bool:
    """Whether a job asks for something that nodes say that they have beside devices."""
    cpus, memory_bytes = cluster.largest_host
    return bool((job.cpus and cpus) or (job.memory_bytes and memory_bytes))


def shares_by_type(cluster: Cluster) -> Floats:
    """Return the processors and bytes of memory that go with a device of every type, the mean over its nodes.

    Returns
    -------
    A row for every device type; 0 where no node of it says what it has.
    """
    sizes = np.array([node.num_devices for node in cluster.nodes], np.float64)
    hosts = np.array([(node.cpus, node.memory_bytes) for node in cluster.nodes]) * (sizes > 0)[:, None]
    sums = [
        np.bincount(cluster.type_of_node, column, len(cluster.device_types)) for column in (sizes, *hosts.T)
    ]
    return np.stack(sums[1:], axis=1) / sums[0][:, None]


def memory_in_doubt(jobs: Iterable[Job], cluster: Cluster) -> str:
    """A warning where jobs ask for all of a node but for the unit: for so many GiB with every device as it has GB.

    Such jobs leave a device of every node idle, and one of a whole node lies on two. Empty where there are none.
    """
    shares = _shares_of_memory(cluster)
    asked = [memory for job in jobs if (memory := needs_of(job)[1])]
    beyond = [memory for memory in asked if _is_beyond(memory, shares)]
    if not beyond:
        return ""
    share = max(share for share in shares if share < beyond[0])
    return (
        f"jobs ask with every device for a little more memory than its share of a node, {share / 1e9:g} GB, and so "
        f"leave a device idle: {len(beyond)} of {len(asked)}, the first for {beyond[0] / 2**30:g} GiB. If the sizes of "
        "nodes are meant in GiB, as Slurm's are, write @480GiB for @480GB"
    )


def _shares_of_memory(cluster: Cluster) -> frozenset[float]:
    return frozenset(
        node.memory_bytes / node.num_devices
        for node in cluster.nodes
        if node.memory_bytes and node.num_devices
    )


def _is_beyond(memory_bytes: float, shares: Iterable[float]) -> bool:
    """Whether somebody asks with a device for a share but for the unit."""
    return any(share < memory_bytes <= share * _GIB_PER_GB * (1 + 1e-9) for share in shares)


def whole_nodes_in_doubt(jobs: Iterable[Job], cluster: Cluster) -> str:
    """A warning where a node has as many devices as jobs ask for, and no node the rest; empty where there are none.

    Such jobs lie on more nodes than they need devices of, and leave some idle there. Those that `memory_in_doubt` warns
    of are not among them.
    """
    free, shares = FreeDevices(cluster), _shares_of_memory(cluster)
    known: dict[tuple[tuple[float, float], int, int, int], bool] = {}
    asked = [job for job in jobs if asks_for_more(job, cluster)]
    beyond = []
    for job in asked:
        needs, allowed = needs_of(job), cluster.type_bits(job.device_types)
        key = needs, allowed, cluster.partition_index(job.virtual_cluster), job.num_devices
        if key not in known:
            known[key] = not _is_beyond(needs[1], shares) and _needs_more_nodes(*key, free, cluster)
        if known[key]:
            beyond.append(job)
    if not beyond:
        return ""
    return (
        "jobs ask for more processors or memory than a node has with as many devices, and so lie on more nodes and leave "
        f"devices idle: {len(beyond):,} of {len(asked):,}, the first, {beyond[0].name}, for {_asked_by(beyond[0])}. If "
        "nodes have more than the cluster says (Slurm may count hardware threads as processors), write that behind the "
        "@, or leave it out"
    )


def allowed_nodes(cluster: Cluster, allowed: int, partition: int) -> NDArray[np.int64]:
    """Return 1 for each node of a partition whose devices are of an allowed type, else 0."""
    nodes: NDArray[np.int64] = ((allowed >> cluster.type_of_node) & 1) * cluster.members[partition]
    return nodes


def _needs_more_nodes(
    needs: tuple[float, float],
    allowed: int,
    partition: int,
    num_devices: int,
    free: FreeDevices,
    cluster: Cluster,
) -> bool:
    """Whether no node has what goes with all devices of a job, or with all of its own, and some together have."""
    may = allowed_nodes(cluster, allowed, partition)
    room, size = free.room_for(needs) * may, cluster.devices_per_node * may
    together = np.bincount(cluster.type_of_node, room, len(cluster.device_types))
    fits = (room > 0) & (room >= np.minimum(size, num_devices))
    return bool(together.max() >= num_devices and not fits.any())


def _asked_by(job: Job) -> str:
    """Say the devices, processors and memory that a job asks for."""
    more = [f"{job.cpus:g} processors"] * (job.cpus > 0)
    more += [f"{job.memory_bytes / 2**30:g} GiB of memory"] * (job.memory_bytes > 0)
    return f"{job.num_devices} devices with {' and '.join(more)}"


class Asking(Protocol):
    """Devices, processors and memory that a job asks for, in all."""

    @property
    def num_devices(self) -> int: ...
    @property
    def cpus(self) -> float: ...
    @property
    def memory_bytes(self) -> float: ...


def needs_of(job: Asking) -> tuple[float, float]:
    """Processors and memory that a job asks for with each of its devices; 0 for its share."""
    return job.cpus / job.num_devices, job.memory_bytes / job.num_devices


def most_together(cluster: Cluster, needs: tuple[float, float], partition: int) -> list[float]:
    """Count, by device type, the devices of a partition that can each have so many processors and so much memory."""
    there = FreeDevices(cluster).room_for(needs) * cluster.members[partition]
    most: list[float] = np.bincount(cluster.type_of_node, there).tolist()
    return most


def check_there_is(job: Job, allowed: int, most: Sequence[float], cluster: Cluster) -> None:
    """Whether a job can ever have the processors and the memory that it asks for.

    Parameters
    ----------
    allowed : types of device that it can run on, as bits by their index.
    most : devices that can be had with as much; see `most_together`.

    Raises
    ------
    UnfitJobError
        If it cannot.
    """
    if not any(most[kind] >= job.least_devices and allowed >> kind & 1 for kind in range(len(most))):
        raise UnfitJobError(
            "it asks for more processors or memory than its nodes can have",
            f"job {job.name!r} asks for {_asked_by(job)}; no nodes of one type of "
            f"cluster {cluster.name!r} have that together. Ask for less, or take larger nodes",
        )
