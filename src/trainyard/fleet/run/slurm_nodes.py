"""The devices that Slurm has: the nodes of a partition, how many devices of which type each has, and which are usable."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trainyard.fleet.errors import FleetError
from trainyard.fleet.run.fault import BackendError
from trainyard.hardware.cluster import Cluster, Node

_MIB = 2**20
_PATIENCE_S = 60.0
_FIELD = re.compile(r"(\w+)=(\S*)")
_GRES = re.compile(r"(gpu)(?::([A-Za-z][^:(,]*))?:(\d+)")
_SLOTS = re.compile(r"(?:^|,)slot:(\d+)")
# How commands say that the controller does not answer; it may be restarting.
_AWAY = re.compile("Unable to contact slurm controller|Socket timed out")
_CONSTRAINED = re.compile(r"^ConstrainDevices\s*=\s*yes", re.MULTILINE | re.IGNORECASE)
_UNUSABLE = frozenset({"DOWN", "DRAIN", "FAIL", "INVAL", "MAINT", "NOT_RESPONDING", "UNKNOWN"})


@dataclass(frozen=True)
class SlurmNode:
    """The devices of one type of a node.

    Attributes
    ----------
    name, address : of the node, for Slurm and for processes on other nodes.
    gres : what to ask for, ``"gpu:a100"``.
    host : how many devices, with their part of the processors and of the memory.
    slots : jobs that may have one of its devices at once; 0 where Slurm has no slots, or devices of several types.
    """

    name: str
    address: str
    gres: str
    host: Node
    slots: int = 0


def slurm(*command: str, given: str = "") -> str:
    """Run a command of Slurm; return its output.

    Raises
    ------
    BackendError
        If Slurm's controller is not reached.
    FleetError
        If there is no Slurm here, or the command fails.
    """
    try:
        done = subprocess.run(command, input=given, capture_output=True, text=True, timeout=_PATIENCE_S)
    except FileNotFoundError as error:
        raise FleetError(
            f"there is no {command[0]} here: run this where jobs are submitted to Slurm, or install its commands "
            "(on Debian or Ubuntu: apt-get install slurm-client)"
        ) from error
    except subprocess.TimeoutExpired as error:
        raise BackendError(f"Slurm did not answer {command[0]} in {_PATIENCE_S:g} s") from error
    if done.returncode:
        said = f"{command[0]} failed: {(done.stderr or done.stdout).strip()}"
        raise BackendError(said) if _AWAY.search(said) else FleetError(said)
    return done.stdout


def slurm_nodes(types: Mapping[str, str] | None = None) -> tuple[SlurmNode, ...]:
    """Nodes with GPUs, in Slurm's order; of the partition in ``SBATCH_PARTITION``, else of the default one.

    Nodes that cannot be used now are among them, so that a node has the same number at any time.

    Parameters
    ----------
    types : device type of each GRES type, where that is not its name: ``{"a100": "A100-80G", "": "V100"}``, the last
        for GPUs that have no type in Slurm.

    Raises
    ------
    FleetError
        If there is no Slurm, no such node, or none that can be used.
    """
    partition = os.environ.get("SBATCH_PARTITION", "")
    rows = [row.split("|") for row in slurm("sinfo", "--Node", "--noheader", "--format=%N|%P").splitlines()]
    names = [name for name, of in rows if (of.rstrip("*") == partition if partition else of.endswith("*"))]
    found: list[SlurmNode] = []
    usable: set[str] = set()
    if names:
        nodes = _shown(names)
        found = [devices for node in nodes for devices in _devices(node, types or {})]
        usable = {node["NodeName"] for node in nodes if _is_usable(node)}
    if not any(node.name in usable for node in found):
        known = ", ".join(sorted({of.rstrip("*") for _, of in rows})) or "none"
        which = f"partition {partition!r}" if partition else "its default partition"
        raise FleetError(
            f"Slurm has no usable node with GPUs in {which}; set SBATCH_PARTITION to one that has some "
            f"(there are: {known})"
        )
    return tuple(found)


def slurm_cluster(nodes: Sequence[SlurmNode] | None = None) -> Cluster:
    """The cluster that Slurm has, to be given to policies.

    Parameters
    ----------
    nodes : of ``slurm_nodes``, which is asked if they are not given.

    Raises
    ------
    FleetError
        If there is no Slurm, or no node with GPUs.
    """
    return Cluster("slurm", tuple(node.host for node in nodes or slurm_nodes()))


def require_slots(nodes: Sequence[SlurmNode]) -> None:
    """Check that Slurm lets jobs share the devices of these nodes.

    Raises
    ------
    FleetError
        If a node has no slots for two jobs on each device, or jobs see only the devices that Slurm gave them.
    """
    for node in nodes:
        if node.slots < 2:
            raise FleetError(
                f"jobs are to share devices, for which Slurm must count slots, two for each device; node {node.name!r} "
                f"has not as many, or devices of several types. Add slot to GresTypes and slot:"
                f"{2 * node.host.num_devices} to the node's Gres in slurm.conf, or take a policy that does not share"
            )
    if _CONSTRAINED.search(slurm("scontrol", "show", "config")):
        raise FleetError(
            "jobs are to share devices, but Slurm hides the devices that it did not give to a job, and slots are none; "
            "set ConstrainDevices=no in cgroup.conf, or take a policy that does not share"
        )


def unusable(names: Sequence[str]) -> frozenset[str]:
    """Return the nodes that cannot be used now: down, drained, or silent.

    Raises
    ------
    FleetError
        If Slurm does not answer.
    """
    return frozenset(node["NodeName"] for node in _shown(names) if not _is_usable(node))


def _shown(names: Sequence[str]) -> list[dict[str, str]]:
    """Return the fields that Slurm shows of nodes."""
    listing = slurm("scontrol", "--oneliner", "show", "node", ",".join(names))
    return [dict(_FIELD.findall(line)) for line in listing.splitlines()]


def _is_usable(node: Mapping[str, str]) -> bool:
    state = node["State"]
    return not state.endswith("*") and _UNUSABLE.isdisjoint(state.split("+"))


def _devices(node: Mapping[str, str], types: Mapping[str, str]) -> list[SlurmNode]:
    """The devices of one node, by type, from what ``scontrol show node`` says of it."""
    groups = [
        (f"{kind}:{type_}".rstrip(":"), type_, int(n)) for kind, type_, n in _GRES.findall(node["Gres"])
    ]
    total = sum(count for *_, count in groups)
    slots = sum(map(int, _SLOTS.findall(node["Gres"]))) // total if len(groups) == 1 else 0
    # Cores and memory that are kept for the system are not to be had.
    cpus = float(node.get("CPUEfctv", node["CPUTot"]))
    memory_mib = int(node["RealMemory"]) - int(node.get("MemSpecLimit", 0))
    memory_bytes = float(memory_mib * _MIB) if memory_mib > 1 else 0.0  # 1 where nobody told Slurm
    return [
        SlurmNode(
            node["NodeName"],
            node["NodeAddr"],
            gres,
            Node.named(
                types.get(type_, type_ or "gpu"), count, cpus * count / total, memory_bytes * count / total
            ),
            slots,
        )
        for gres, type_, count in groups
    ]
