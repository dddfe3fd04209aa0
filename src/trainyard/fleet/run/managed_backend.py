"""Base of the backends that start processes through a cluster manager."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from trainyard.fleet.run.backend import BackendOptions
from trainyard.fleet.run.directory_backend import DirectoryBackend
from trainyard.fleet.run.fit import require_fit
from trainyard.fleet.workload.job import Grant
from trainyard.hardware.cluster import Cluster, Node


class ManagedNode(Protocol):
    """A node of a cluster manager: its resources, and the address by which other nodes reach it."""

    @property
    def host(self) -> Node: ...

    @property
    def address(self) -> str: ...


class ManagedBackend(DirectoryBackend):
    """A backend whose processes a cluster manager starts. A job runs until all its processes have ended.

    Parameters
    ----------
    cluster, folder, options : see `DirectoryBackend`.
    nodes : nodes of the manager, in the order of the cluster's nodes.
    manager : name of the manager, for messages.
    """

    def __init__(
        self,
        cluster: Cluster,
        folder: Path,
        options: BackendOptions,
        nodes: Sequence[ManagedNode],
        manager: str,
    ) -> None:
        require_fit(cluster, [node.host for node in nodes], manager)
        super().__init__(cluster, folder, options)
        self._managed = nodes[: len(cluster.nodes)]

    def host(self, node: int) -> Node:
        return self._managed[node].host

    def own(self, node: int, count: int, grant: Grant) -> Node:
        """Return the part of a node that a job gets."""
        return own_part(self.host(node), count, self.jobs_per_device(node), grant)

    def cores(self, node: int) -> float:
        if not self.is_one_machine:
            return super().cores(node)
        return len(os.sched_getaffinity(0)) * self.cluster.nodes[node].num_devices / self.cluster.num_devices

    def places(self, node: int) -> int:
        if not self.is_one_machine:
            return super().places(node)
        return self.cluster.nodes[node].num_devices * self.jobs_per_device(node)

    @property
    def is_one_machine(self) -> bool:
        """Whether all nodes are this machine, as in a trial of a manager: several of type ``local`` with one address."""
        return (
            self._on_cores and len(self._managed) > 1 and len({node.address for node in self._managed}) == 1
        )


def own_part(host: Node, count: int, jobs_per_device: int, grant: Grant) -> Node:
    """Return the part of a node that a job gets: the CPUs and memory of its grant, or else the share of its devices.

    The part is never more than the node has: the manager would wait for the rest without end.

    Parameters
    ----------
    count : number of the grant's devices on the node.
    jobs_per_device : number of jobs that share the CPUs and memory of one device.
    """
    grant_share, node_share = count / grant.num_devices, count / (host.num_devices * jobs_per_device)
    cpus = min(grant.cpus * grant_share, host.cpus) or host.cpus * node_share
    memory_bytes = min(grant.memory_bytes * grant_share, host.memory_bytes) or host.memory_bytes * node_share
    return Node.named(host.device_type, count, cpus, memory_bytes)
