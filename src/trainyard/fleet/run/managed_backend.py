"""What backends of cluster managers share."""

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
    """A node of a cluster manager: what it has, and its address for processes on others."""

    @property
    def host(self) -> Node: ...

    @property
    def address(self) -> str: ...


class ManagedBackend(DirectoryBackend):
    """A backend that has a cluster manager start the processes; it counts a job as one until all of them are over.

    Parameters
    ----------
    cluster, folder, options : see `DirectoryBackend`.
    nodes : that the manager has, in the order in which the nodes of the cluster are to be its.
    manager : its name, for messages.
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
        """What a job has of a node."""
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
        """Nodes of type ``local`` at one address are one machine, this one, on which a manager is tried."""
        return (
            self._on_cores and len(self._managed) > 1 and len({node.address for node in self._managed}) == 1
        )


def own_part(host: Node, count: int, jobs_per_device: int, grant: Grant) -> Node:
    """What a job has of a node: what its grant says, or as much as goes with its devices, so that others fit beside it.

    More than there is would never come.

    Parameters
    ----------
    count : devices of the grant that are of the node.
    jobs_per_device : that divide what goes with a device.
    """
    asked, share = count / grant.num_devices, count / (host.num_devices * jobs_per_device)
    cpus = min(grant.cpus * asked, host.cpus) or host.cpus * share
    memory_bytes = min(grant.memory_bytes * asked, host.memory_bytes) or host.memory_bytes * share
    return Node.named(host.device_type, count, cpus, memory_bytes)
