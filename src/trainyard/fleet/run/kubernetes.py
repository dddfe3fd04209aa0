"""Kubernetes: the manifest of a job, which runs the same process on each node as every backend does.

A job is an Indexed Job with one pod per node, behind a headless service by which the pods find the first one. All pods
are had at once or none: Kueue admits a Job as a whole, Volcano a PodGroup. Nodes with different numbers of devices need
pods that differ, so several Jobs, which only a PodGroup holds together.

A pod that fails ends its Job, as the others cannot go on; applied again, the Job continues from its newest checkpoint. So
it does after Kueue has suspended it. Which nodes the pods come to, Kubernetes decides; labels of nodes say of which type.
From Kueue a Job needs a label only: its own objects, such as the queue, are the administrators'.
"""

from __future__ import annotations

import json
import re
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil
from pathlib import PurePosixPath
from typing import Any

import yaml

from trainyard.fleet.place.auxiliary import as_asked
from trainyard.fleet.run.directory_backend import require_whole
from trainyard.fleet.run.node import NODE_MODULE
from trainyard.fleet.site import FleetError, Site
from trainyard.fleet.workload.job import Grant, Job
from trainyard.fleet.workload.training import THIS_MACHINE, cluster_text, training_of

_PORT = 29500  # a pod has an address of its own, so that every port of it is free
_NAME = re.compile(r"[a-z]([-a-z0-9]{0,48}[a-z0-9])?")
_LABEL = "trainyard-job"
_INDEX = "JOB_COMPLETION_INDEX"


@dataclass(frozen=True)
class Kueue:
    """Gangs by Kueue.

    Attributes
    ----------
    queue : a LocalQueue of the namespace.
    """

    queue: str


@dataclass(frozen=True)
class Volcano:
    """Gangs by Volcano.

    Attributes
    ----------
    queue : of Volcano.
    """

    queue: str = "default"


@dataclass(frozen=True)
class Pods:
    """What the pods of all jobs have.

    Attributes
    ----------
    image : with Trainyard in it.
    claim : a PersistentVolumeClaim that all nodes can write to (ReadWriteMany).
    folder : where the claim is mounted; the folders of the jobs are there.
    resource : what Kubernetes calls a device.
    node_labels : of the nodes with devices of each type, by its name; needed where a cluster has several types:
        ``{"A100-80G": {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB"}}``.
    """

    image: str
    claim: str
    folder: PurePosixPath
    resource: str = "nvidia.com/gpu"
    node_labels: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


def manifest(job: Job, grant: Grant, site: Site, pods: Pods, gang: Kueue | Volcano) -> str:
    """A job for ``kubectl apply --filename -``.

    Parameters
    ----------
    grant : devices of ``site``; how many on how many nodes is kept, which nodes those are is not.

    Raises
    ------
    FleetError
        If the job is no training, its name is none for Kubernetes, it shares devices or has some that are not there, it
        has a number of devices that varies over its nodes and is given to Kueue, or nothing says which of the nodes of
        a cluster of several types have the devices that it has.
    """
    require_whole(job.name, grant, "Kubernetes")
    last = site.whole.num_devices - 1
    if max(grant.devices) > last:
        raise FleetError(
            f"job {job.name!r} is given device {max(grant.devices)}; the devices of cluster {site.name!r} are 0 to {last}"
        )
    if not _NAME.fullmatch(job.name):
        raise FleetError(
            f"job {job.name!r}: names in Kubernetes are at most 50 lower-case letters, digits and '-', beginning with a "
            "letter; give it another name"
        )
    asks = grant.cpus or grant.memory_bytes
    groups = _groups(grant if asks else as_asked(job, grant), site)
    if isinstance(gang, Kueue) and len(groups) > 1:
        raise FleetError(
            f"job {job.name!r} has {' and '.join(str(group.per_node) for group in groups)} devices on its nodes; Kueue "
            "admits pods that are equal together: give it equally many on each node, or take Volcano"
        )
    _require_labels(site, groups, pods)
    documents = [_service(job.name), *_jobs(job, groups, pods, gang)]
    if isinstance(gang, Volcano):
        documents.insert(0, _pod_group(job.name, sum(group.num_nodes for group in groups), gang))
    return yaml.safe_dump_all(documents, sort_keys=False, width=1000)


@dataclass(frozen=True)
class _Group:
    """Nodes of a job that are alike, ``first`` the first rank on them, and what it asks for on each beside devices."""

    device_type: str
    per_node: int
    num_nodes: int
    first: int
    cpus: float
    memory_bytes: float

    def resources(self, resource: str) -> dict[str, str]:
        """What a pod takes of its node; on a machine without GPUs a processor per process, if it asks for none."""
        on_cores = self.device_type == THIS_MACHINE
        taken = {} if on_cores else {resource: str(self.per_node)}
        if cpus := self.cpus or (self.per_node if on_cores else 0):
            taken["cpu"] = f"{ceil(1000 * cpus)}m"
        return taken | ({"memory": str(ceil(self.memory_bytes))} if self.memory_bytes else {})


def _groups(grant: Grant, site: Site) -> list[_Group]:
    """Nodes that are alike together, those with most devices first."""
    per_node = Counter(int(site.node_of[device]) for device in grant.devices)
    alike = Counter((count, site.hosts[node].device_type) for node, count in per_node.items())
    groups: list[_Group] = []
    first = 0
    for (count, device_type), num_nodes in sorted(alike.items(), reverse=True):
        part = count / grant.num_devices
        beside = grant.cpus * part, grant.memory_bytes * part
        groups.append(_Group(device_type, count, num_nodes, first, *beside))
        first += count * num_nodes
    return groups


def _require_labels(site: Site, groups: Sequence[_Group], pods: Pods) -> None:
    """Check that pods come to nodes with the devices that they are to have.

    Raises
    ------
    FleetError
        If nothing says which nodes those are.
    """
    for group in groups if len(site.device_types) > 1 else ():
        if not pods.node_labels.get(group.device_type):
            raise FleetError(
                f"cluster {site.name!r} has {', '.join(site.device_types)}, and pods ask for devices of any type; say "
                f"which labels nodes with {group.device_type} have: "
                f'Pods(..., node_labels={{"{group.device_type}": {{"nvidia.com/gpu.product": "..."}}}})'
            )


def _service(name: str) -> dict[str, Any]:
    """Names for the pods; also before they are ready, as they wait for each other."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "labels": {_LABEL: name}},
        "spec": {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": {_LABEL: name}},
    }


def _pod_group(name: str, num_pods: int, gang: Volcano) -> dict[str, Any]:
    return {
        "apiVersion": "scheduling.volcano.sh/v1beta1",
        "kind": "PodGroup",
        "metadata": {"name": name, "labels": {_LABEL: name}},
        "spec": {"minMember": num_pods, "queue": gang.queue},
    }


def _jobs(job: Job, groups: Sequence[_Group], pods: Pods, gang: Kueue | Volcano) -> Iterator[dict[str, Any]]:
    names = [job.name if len(groups) == 1 else f"{job.name}-{number}" for number in range(len(groups))]
    master = f"{names[0]}-0.{job.name}:{_PORT}"
    for name, group in zip(names, groups, strict=True):
        labels = {_LABEL: job.name}
        queue = {"kueue.x-k8s.io/queue-name": gang.queue} if isinstance(gang, Kueue) else {}
        yield {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": name, "labels": labels | queue},
            "spec": {
                "completionMode": "Indexed",
                "completions": group.num_nodes,
                "parallelism": group.num_nodes,
                "backoffLimit": 0,
                **({"suspend": True} if queue else {}),
                "template": {
                    "metadata": {
                        "labels": labels,
                        **({} if queue else {"annotations": {"scheduling.k8s.io/group-name": job.name}}),
                    },
                    "spec": _pod(job, group, pods, _script(job, group, groups, pods, master))
                    | ({} if queue else {"schedulerName": "volcano"}),
                },
            },
        }


def _pod(job: Job, group: _Group, pods: Pods, script: str) -> dict[str, Any]:
    resources = group.resources(pods.resource)
    labels = pods.node_labels.get(group.device_type)
    container = {
        "name": "node",
        "image": pods.image,
        "command": ["/bin/sh", "-c", script],
        "resources": {"requests": resources, "limits": dict(resources)},
        "volumeMounts": [
            {"name": "jobs", "mountPath": str(pods.folder)},
            {"name": "shared-memory", "mountPath": "/dev/shm"},
        ],
    }
    return {
        "subdomain": job.name,
        "restartPolicy": "Never",
        **({"nodeSelector": dict(labels)} if labels else {}),
        "containers": [container],
        "volumes": [
            {"name": "jobs", "persistentVolumeClaim": {"claimName": pods.claim}},
            # What containers have of it by default is too little for processes that exchange tensors.
            {"name": "shared-memory", "emptyDir": {"medium": "Memory"}},
        ],
    }


def _script(job: Job, group: _Group, groups: Sequence[_Group], pods: Pods, master: str) -> str:
    """What a pod runs: the ranks of its index."""
    options = {
        "count": group.per_node,
        "world": sum(g.per_node * g.num_nodes for g in groups),
        "meeting": master,
        "cluster": cluster_text([(g.device_type, g.per_node) for g in groups for _ in range(g.num_nodes)]),
        "training": json.dumps(training_of(job).to_dict()),
    }
    words = ["python", "-m", NODE_MODULE, str(pods.folder / job.name)]
    words += [f"--{name}={value}" for name, value in options.items()]
    return f"exec {shlex.join(words)} --first=$(({group.first} + {group.per_node} * {_INDEX}))"
