"""The devices that Ray has: which nodes of the cluster have GPUs, how many and of which type."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from logging import WARNING
from pathlib import Path
from typing import Any

import ray

from trainyard.fleet.errors import FleetError
from trainyard.hardware.cluster import Cluster, Node

NAMESPACE = "trainyard"
_TYPE = "accelerator_type:"
_PROBE_S = 1.0


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
    host: Node

    def looks_like(self, other: RayNode) -> bool:
        """Whether it may be the same node, started again."""
        return self.address == other.address and self.has_as_much_as(other)

    def has_as_much_as(self, other: RayNode) -> bool:
        """Whether it has as many devices of the same type."""
        mine, others = self.host, other.host
        return (mine.device_type, mine.num_devices) == (others.device_type, others.num_devices)


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
        if node["Alive"] and has.get("GPU", 0) >= 1 and not _is_gone(node):
            kind = next((key.removeprefix(_TYPE) for key in has if key.startswith(_TYPE)), "")
            device_type = (types or {}).get(kind, kind or "gpu")
            host = Node.named(device_type, int(has["GPU"]), has.get("CPU", 0.0), has.get("memory", 0.0))
            found.append(RayNode(node["NodeID"], node["NodeManagerAddress"], host))
    return tuple(sorted(found, key=lambda node: (node.address, node.number)))


def _is_gone(node: Mapping[str, Any]) -> bool:
    """Whether the machine is there and says that nothing listens: Ray itself needs up to 15 s to know that."""
    try:
        socket.create_connection((node["NodeManagerAddress"], node["NodeManagerPort"]), _PROBE_S).close()
    except ConnectionRefusedError:
        return True
    except OSError:  # a machine that does not answer may be slow
        pass
    return False


class RayMemory:
    """Which node has which number, kept in a file: Ray forgets nodes that are gone, and backends may end meanwhile.

    Parameters
    ----------
    file : of the backend; made if it is not there.
    """

    def __init__(self, file: Path) -> None:
        self._file = file

    def nodes(self, cluster: Cluster) -> tuple[RayNode, ...]:
        """Nodes for a cluster: those of before that were enough for it, also where some are gone, else those present.

        Raises
        ------
        FleetError
            If there is none.
        """
        before = self._read()
        enough = len(before) >= len(cluster.nodes) and all(
            mine.num_devices <= node.host.num_devices
            for mine, node in zip(cluster.nodes, before, strict=False)
        )
        return self.renewed(before, present_nodes()) if enough else self._kept(ray_nodes())

    def renewed(self, known: Sequence[RayNode], present: Sequence[RayNode]) -> tuple[RayNode, ...]:
        """Nodes in the order in which they are known, those that were started again as they are now; then new ones.

        A node that is started again is another one to Ray: one at the same address takes the place of one that is gone,
        or one at another that has as much.
        """
        numbers = {node.number for node in present}
        new = [node for node in present if node.number not in {n.number for n in known}]
        nodes = list(known)
        alike: tuple[Callable[[RayNode, RayNode], bool], ...] = (RayNode.looks_like, RayNode.has_as_much_as)
        for is_alike in alike:
            for place, node in enumerate(nodes):
                again = next((other for other in new if is_alike(other, node)), None)
                if node.number not in numbers and again is not None:
                    nodes[place] = again
                    new.remove(again)
                    numbers.add(again.number)
        found = (*nodes, *new)
        return found if found == tuple(known) else self._kept(found)

    def _read(self) -> tuple[RayNode, ...]:
        try:
            rows = json.loads(self._file.read_text())
            return tuple(RayNode(row["number"], row["address"], Node.named(**row["host"])) for row in rows)
        except (OSError, ValueError, TypeError, KeyError):  # there is none yet, or none of ours
            return ()

    def _kept(self, nodes: tuple[RayNode, ...]) -> tuple[RayNode, ...]:
        self._file.parent.mkdir(parents=True, exist_ok=True)
        partial = self._file.with_suffix(".part")
        partial.write_text(json.dumps([_row(node) for node in nodes], indent=1))
        partial.replace(self._file)
        return nodes


def _row(node: RayNode) -> dict[str, Any]:
    """A node as it is kept; see `RayMemory`."""
    has = node.host
    host = {"device_type": has.device_type, "num_devices": has.num_devices, "cpus": has.cpus}
    return {"number": node.number, "address": node.address, "host": host | {"memory_bytes": has.memory_bytes}}


def ray_cluster(address: str = "auto", types: Mapping[str, str] | None = None) -> Cluster:
    """The cluster that Ray has, to be given to policies.

    Raises
    ------
    FleetError
        If there is no cluster, or none with GPUs.
    """
    connect(address)
    return Cluster("ray", tuple(node.host for node in ray_nodes(types)))
