"""The devices that Ray has: which nodes of the cluster have GPUs, how many and of which type."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from logging import WARNING

import ray

from trainyard.fleet.site import FleetError, Host, Site

NAMESPACE = "trainyard"
_TYPE = "accelerator_type:"


@dataclass(frozen=True)
class RayNode:
    """A node of Ray.

    Attributes
    ----------
    number : Ray's identifier.
    address : for processes on other nodes.
    host : what it has.
    """

    number: str
    address: str
    host: Host

    def looks_like(self, other: RayNode) -> bool:
        """Whether it may be the same node, started again."""
        mine, others = self.host, other.host
        return (self.address, mine.device_type, mine.num_devices) == (
            other.address,
            others.device_type,
            others.num_devices,
        )


def connect(address: str = "auto") -> None:
    """Be a driver of a Ray cluster, unless this process is one.

    Raises
    ------
    FleetError
        If there is no cluster.
    """
    if ray.is_initialized():
        return
    try:
        ray.init(address=address, namespace=NAMESPACE, log_to_driver=False, logging_level=WARNING)
    except ConnectionError as error:
        raise FleetError(
            f"there is no Ray cluster at {address!r}; start one with: ray start --head, and on the other nodes "
            f"ray start --address=HOST:6379 ({error})"
        ) from error


def ray_nodes(types: Mapping[str, str] | None = None) -> tuple[RayNode, ...]:
    """Nodes of the connected cluster that have GPUs, in the order of their addresses.

    Parameters
    ----------
    types : device type of each accelerator type of Ray, where that is not its name: ``{"A100": "A100-80G", "": "V100"}``,
        the last for nodes that do not say what they have.

    Raises
    ------
    FleetError
        If there is none.
    """
    found = present_nodes(types)
    if not found:
        raise FleetError("the Ray cluster has no nodes with GPUs; start some with: ray start --num-gpus=N")
    return found


def present_nodes(types: Mapping[str, str] | None = None) -> tuple[RayNode, ...]:
    """The same, and none if there is none now."""
    found = []
    for node in ray.nodes():
        has = node["Resources"]
        if node["Alive"] and has.get("GPU", 0) >= 1:
            kind = next((key.removeprefix(_TYPE) for key in has if key.startswith(_TYPE)), "")
            device_type = (types or {}).get(kind, kind or "gpu")
            host = Host(device_type, int(has["GPU"]), has.get("CPU", 0.0), has.get("memory", 0.0))
            found.append(RayNode(node["NodeID"], node["NodeManagerAddress"], host))
    return tuple(sorted(found, key=lambda node: (node.address, node.number)))


def ray_site(address: str = "auto", types: Mapping[str, str] | None = None) -> Site:
    """The cluster that Ray has, to be given to policies.

    Raises
    ------
    FleetError
        If there is no cluster, or none with GPUs.
    """
    connect(address)
    return Site("ray", tuple(node.host for node in ray_nodes(types)))
