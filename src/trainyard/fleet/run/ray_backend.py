"""Ray as a backend: a job is a detached actor that has a placement group and an actor on each node of the job.

The placement group is had as a whole or not at all, and its bundles are on the nodes of the grant. It belongs to the
job's actor, as the actors of the nodes do: when that one ends, fails or is killed, Ray takes all of it away, so that no
device stays with a job that is gone. The driver may end meanwhile, and another one finds the job by its actor's name.

Jobs that share devices take half of a GPU for each of theirs, in a bundle of its own, whatever their shares are: a
share changes when a partner comes or goes, and a bundle does not. So do those that are alone on their devices. Two halves
fit on a device, which is as many jobs as any policy puts there, and as all are equal no GPU is left with a part that
nobody can use. Ray puts halves together as they come, those of one job too; so it counts the GPUs of a node only, and
each process is told which of them is its own.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util import list_named_actors
from ray.util.placement_group import placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from trainyard.fleet.run.asked import Asked
from trainyard.fleet.run.backend import USUAL_OPTIONS, BackendOptions
from trainyard.fleet.run.job_directory import JobDirectory
from trainyard.fleet.run.managed_backend import ManagedBackend
from trainyard.fleet.run.ranks import Ranks
from trainyard.fleet.run.ray_nodes import NAMESPACE, RayMemory, RayNode, connect, present_nodes
from trainyard.fleet.workload.job import Grant
from trainyard.hardware.cluster import Cluster, Node
from trainyard.private import opener
from trainyard.processes.heap import heap_environment

__all__ = ["RayBackend"]

_GANGS_FRESH_S, _NODES_FRESH_S = 0.25, 1.0
_LOOK_S = 0.25
_JOBS_PER_DEVICE = 2
_VISIBLE = "CUDA_VISIBLE_DEVICES"
# Ray leaves the GPUs that a process sees as they are on the node.
_AS_ON_NODE = {"env_vars": {f"RAY_EXPERIMENTAL_NOSET_{_VISIBLE}": "1"}}


class RayBackend(ManagedBackend):
    """Trains jobs in actors of Ray.

    Parameters
    ----------
    cluster, folder, options : see `DirectoryBackend`. The nodes of the cluster are, in order, those of Ray:
        ``ray_cluster()``, or a smaller one.
    address : of the cluster, as ``ray.init`` takes it.

    Raises
    ------
    FleetError
        If there is no cluster, or it has not the devices of the cluster.
    """

    def __init__(
        self,
        cluster: Cluster,
        folder: Path,
        options: BackendOptions = USUAL_OPTIONS,
        *,
        address: str = "auto",
    ) -> None:
        connect(address)
        self._memory = RayMemory(folder / ".ray-nodes.json")
        self._nodes = self._memory.nodes(cluster)
        super().__init__(cluster, folder, options, self._nodes, "Ray")
        self._gangs = Asked(_gangs, _GANGS_FRESH_S)
        self._present = Asked(present_nodes, _NODES_FRESH_S)

    def host(self, node: int) -> Node:
        return self._nodes[node].host  # one that was started again may have other memory

    def own(self, node: int, count: int, grant: Grant) -> Node:
        """Return a job's part of a node; memory, which Ray counts and does not limit, only as the job asks for it."""
        own = super().own(node, count, grant)
        return own if grant.memory_bytes else replace(own, memory_bytes=0.0)

    def jobs_per_device(self, node: int) -> int:
        return _JOBS_PER_DEVICE if self.shares else 1

    def launch(self, name: str, directory: JobDirectory, grant: Grant) -> None:
        addresses = {number: node.address for number, node in enumerate(self._nodes)}
        parts = [
            (self._nodes[node], ranks, self.own(node, ranks.count, grant))
            for node, ranks in self.ranks(grant, addresses).items()
        ]
        # It lives and dies with the node of rank 0.
        where = NodeAffinitySchedulingStrategy(parts[0][0].number, soft=False)
        options = {"name": str(directory.path), "namespace": NAMESPACE, "lifetime": "detached", "num_cpus": 0}
        ray.remote(_Gang).options(**options, scheduling_strategy=where).remote(directory.path, parts)
        self._gangs.forget()

    def is_over(self, name: str) -> bool:
        directory = self.directory(name)
        return str(directory.path) not in self._gangs.answer() and not directory.groups()

    def kill(self, name: str) -> None:
        try:
            ray.kill(ray.get_actor(str(self.directory(name).path), namespace=NAMESPACE))
        except ValueError:  # it has ended meanwhile
            return
        finally:
            self._gangs.forget()

    def away(self) -> frozenset[int]:
        present = self._present.answer()
        self._nodes = self._memory.renewed(self._nodes, present)
        numbers = {node.number for node in present}
        return frozenset(n for n in range(len(self.cluster.nodes)) if self._nodes[n].number not in numbers)


def _gangs() -> frozenset[str]:
    """Names of the actors of all jobs."""
    return frozenset(
        actor["name"] for actor in list_named_actors(all_namespaces=True) if actor["namespace"] == NAMESPACE
    )


class _Gang:
    """All processes of a job; what it has goes when it goes."""

    def __init__(self, path: Path, parts: Sequence[tuple[RayNode, Ranks, Node]]) -> None:
        self._directory, self._parts = JobDirectory(path), parts
        # Asked by itself, not by the driver, which may be gone before it runs.
        ray.get_runtime_context().current_actor.run.remote()

    def run(self) -> None:
        """Wait for the devices, start the processes, and end with the first that fails or the last that ends.

        One that is to leave while it waits ends at once.
        """
        try:
            running = self._start()
            while running:
                (done,), running = ray.wait(running)
                if ray.get(done):
                    break
        except RayError as error:
            self._directory.fail(f"a node is lost: {error}".splitlines()[0], killed=True)
        finally:
            ray.actor.exit_actor()

    def _start(self) -> list[Any]:
        bundles: list[dict[str, float]] = []
        where, firsts = [], []
        for node, ranks, own in self._parts:
            firsts.append(len(bundles))
            bundles += (more := _bundles(ranks, own))
            where += [{"ray.io/node-id": node.number}] * len(more)
        group = placement_group(bundles, strategy="PACK", bundle_label_selector=where)
        placed = group.ready()
        while not ray.wait([placed], timeout=_LOOK_S)[0]:
            if self._directory.pause.exists():  # it is to leave before it was there
                return []
        ray.get(placed)
        self._actors: list[Any] = [  # those that nobody holds are ended
            ray.remote(_Node)
            .options(
                num_cpus=bundles[number].get("CPU", 0),
                num_gpus=bundles[number]["GPU"],
                scheduling_strategy=PlacementGroupSchedulingStrategy(group, number),
                runtime_env=_AS_ON_NODE if ranks.devices else None,
            )
            .remote()
            for number, (_, ranks, _) in zip(firsts, self._parts, strict=True)
        ]
        return [
            actor.run.remote(self._directory.path, ranks)
            for actor, (_, ranks, _) in zip(self._actors, self._parts, strict=True)
        ]


class _Node:
    """The processes of a job on one node."""

    def run(self, path: Path, ranks: Ranks) -> int:
        """Start them and wait for them; returns their exit status."""
        directory, ranks = JobDirectory(path), replace(ranks, devices=_visible(ranks.devices))
        with open(directory.logs / "node.log", "ab", opener=opener) as log:
            return subprocess.Popen(
                [*ranks.command(path), f"--parent={os.getpid()}"],
                env={**os.environ, **heap_environment()},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            ).wait()


def _bundles(ranks: Ranks, own: Node) -> list[dict[str, float]]:
    """Return what a job takes of each node: devices, processors and memory.

    Ranks that know their devices may share them; Ray has no bundle of more than one GPU and a part.
    """
    part = 1.0 / _JOBS_PER_DEVICE
    bundles = [{"GPU": part} for _ in range(ranks.count)] if ranks.devices else [{"GPU": float(ranks.count)}]
    more = {"CPU": float(int(own.cpus)), "memory": float(int(own.memory_bytes))}
    return [bundles[0] | {name: count for name, count in more.items() if count}, *bundles[1:]]


def _visible(devices: str) -> str:
    """Names of devices of this node; where Ray was started with some GPUs only, their numbers are among those."""
    names = os.environ.get(_VISIBLE, "").split(",")
    if not devices or names == [""]:
        return devices
    return ",".join(names[int(number)] for number in devices.split(","))
