"""Whether the nodes of a cluster manager are those of a cluster: as many devices, of the types that it says."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from itertools import groupby

from trainyard.fleet.errors import FleetError
from trainyard.hardware import DEVICES
from trainyard.hardware.cluster import Cluster, Node

__all__ = ["require_fit"]

_ROUNDING = 1.0 + 1e-6
_GB = 1e9
_MEMORY = re.compile(r"(?<![a-z0-9])(\d+)gb?(?![a-z0-9])")


def require_fit(cluster: Cluster, nodes: Sequence[Node], backend: str) -> None:
    """Check that the hosts of a cluster, in order, are what the nodes of a cluster manager are, or a part of it.

    Raises
    ------
    FleetError
        If there are fewer nodes, or one has less, or devices of another type.
    """
    for number, host in enumerate(cluster.nodes):
        there = nodes[number] if number < len(nodes) else Node.named("", 0)
        if host.num_devices > there.num_devices:
            raise FleetError(
                _but(cluster, number, backend, f"{host.num_devices} devices", f"{there.num_devices}")
                + f"; it has nodes with {', '.join(str(node.num_devices) for node in nodes) or 'no'} devices"
            )
        if differ(host.device_type, there.device_type):
            raise FleetError(
                _but(cluster, number, backend, host.device_type, there.device_type)
                + f"; give the pools of the cluster in the order of its nodes, which are {_pools(nodes)}"
            )
        for what, unit, ours, theirs in (
            ("processors", 1.0, host.cpus, there.cpus),
            ("GB of memory", _GB, host.memory_bytes, there.memory_bytes),
        ):
            # Jobs would wait for it for ever.
            if ours > theirs * _ROUNDING:
                raise FleetError(
                    _but(cluster, number, backend, f"{ours / unit:g} {what}", f"{theirs / unit:g}")
                    + "; say no more than that of its nodes, or nothing"
                )


def _but(cluster: Cluster, number: int, backend: str, ours: str, theirs: str) -> str:
    return f"cluster {cluster.name!r} has {ours} on node {number}, {backend} has {theirs} there"


def differ(here: str, there: str) -> bool:
    """Whether two names are of devices that are known and not the same; of other names nothing can be said.

    Cluster managers call devices as their administrators or drivers do: ``v100``, ``nvidia_a100-sxm4-80gb``.
    """
    ours, theirs = _models(here), _models(there)
    if not ours or not theirs:
        return False
    sizes = set(_MEMORY.findall(here.lower())), set(_MEMORY.findall(there.lower()))
    return not ours & theirs or (all(sizes) and not sizes[0] & sizes[1])


def _models(name: str) -> frozenset[str]:
    """The known models that a name speaks of, ``a100`` for ``Tesla A100 80GB``."""
    return frozenset(model for model, pattern in _patterns().items() if pattern.search(name.lower()))


@cache
def _patterns() -> dict[str, re.Pattern[str]]:
    """How the models of all known devices are recognised, whatever stands between letters and digits."""
    models = {name.lower().partition("-")[0] for name in DEVICES}
    spelled = {model: re.sub(r"(?<=[a-z])(?=\d)", "[-_ ]?", model) for model in models}
    return {model: re.compile(rf"(?<![a-z0-9]){text}(?!\d)") for model, text in spelled.items()}


def _pools(nodes: Sequence[Node]) -> str:
    """Nodes as a cluster is written."""
    alike = groupby(nodes, key=lambda node: (node.num_devices, node.device_type))
    return "+".join(f"{len(list(group))}x{count}x{kind}" for (count, kind), group in alike)
