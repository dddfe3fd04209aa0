"""HiveD on a cluster of the shape of the design configuration that comes with the authors' program.

It has every kind of hierarchy, pinned cells, a node with devices of two types, and devices numbered out of order. Where
jobs go, wait and are preempted is as the tests of that program say.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from trainyard.fleet.allocation import Placed
from trainyard.fleet.policies.hived.config import read_hived
from trainyard.fleet.policies.hived.policy import HiveD
from trainyard.fleet.policies.hived.virtual import Layout
from trainyard.fleet.snapshot import Snapshot
from trainyard.fleet.workload.job import Grant, Job, declared_job
from trainyard.hardware.cluster import Cluster

DESIGN = """
physicalCluster:
  cellTypes:
    C-NODE: {childCellType: C, childCellNumber: 2, isNodeLevel: true}
    P-SWITCH: {childCellType: P, childCellNumber: 2}
    P-SOCKET: {childCellType: P-SWITCH, childCellNumber: 2}
    P-NODE: {childCellType: P-SOCKET, childCellNumber: 2, isNodeLevel: true}
    P-RACK3: {childCellType: P-NODE, childCellNumber: 3}
    V-2: {childCellType: V, childCellNumber: 2}
    V-4: {childCellType: V-2, childCellNumber: 2}
    V-8: {childCellType: V-4, childCellNumber: 2}
    V-NODE: {childCellType: V-8, childCellNumber: 2, isNodeLevel: true}
    V-HALF: {childCellType: V-NODE, childCellNumber: 2}
    V-A-RACK3: {childCellType: V-NODE, childCellNumber: 3}
    V-B-RACK4: {childCellType: V-HALF, childCellNumber: 2}
    I-NODE: {childCellType: I, childCellNumber: 16, isNodeLevel: true}
    I-PAIR: {childCellType: I-NODE, childCellNumber: 2}
  physicalCells:
  - {cellType: C-NODE, cellAddress: c0}
  - {cellType: C-NODE, cellAddress: c1}
  - {cellType: C-NODE, cellAddress: p2, cellChildren: [{cellAddress: 8, pinnedCellId: one-c}, {cellAddress: 9}]}
  - cellType: P-RACK3
    cellChildren:
    - {cellAddress: p2}
    - {cellAddress: p1}
    - cellAddress: p0
      cellChildren:
      - cellChildren:
        - cellChildren: [{cellAddress: 1}, {cellAddress: 3}]
        - cellChildren: [{cellAddress: 4}, {cellAddress: 7}]
      - cellChildren:
        - cellChildren: [{cellAddress: 0}, {cellAddress: 2}]
        - cellChildren: [{cellAddress: 6}, {cellAddress: 5}]
  - {cellType: V-NODE, cellAddress: v10}
  - {cellType: V-NODE, cellAddress: v50}
  - {cellType: V-A-RACK3, cellChildren: [{cellAddress: v20}, {cellAddress: v21}, {cellAddress: v22}]}
  - cellType: V-B-RACK4
    cellChildren:
    - {pinnedCellId: one-v, cellChildren: [{cellAddress: v30}, {cellAddress: v31}]}
    - {cellChildren: [{cellAddress: v32}, {cellAddress: v33}]}
  - cellType: V-B-RACK4
    cellChildren:
    - {cellChildren: [{cellAddress: v40}, {cellAddress: v41}]}
    - {cellChildren: [{cellAddress: v42}, {cellAddress: v43}]}
  - {cellType: I-PAIR, pinnedCellId: one-i, cellChildren: [{cellAddress: i0}, {cellAddress: i1}]}
virtualClusters:
  one:
    virtualCells:
    - {cellType: V-B-RACK4.V-HALF.V-NODE, cellNumber: 2}
    - {cellType: V-A-RACK3.V-NODE, cellNumber: 2}
    - {cellType: V-NODE, cellNumber: 2}
    - {cellType: V-B-RACK4.V-HALF, cellNumber: 1}
    pinnedCells: [{pinnedCellId: one-c}, {pinnedCellId: one-v}, {pinnedCellId: one-i}]
  two:
    virtualCells:
    - {cellType: P-RACK3.P-NODE, cellNumber: 2}
    - {cellType: P-RACK3.P-NODE.P-SOCKET, cellNumber: 2}
    - {cellType: C-NODE, cellNumber: 1}
"""


@dataclass(frozen=True)
class Seen:
    """What this policy looks at in a snapshot."""

    cluster: Cluster
    serial: NDArray[np.int64]
    jobs: tuple[Job, ...]
    grants: tuple[Grant | None, ...]

    @property
    def is_running(self) -> NDArray[np.bool_]:
        return np.array([grant is not None for grant in self.grants])

    def job(self, number: int) -> Job:
        return self.jobs[number]


def names_of(layout: Layout) -> list[tuple[str, str, int]]:
    """Node, type, and number in the node of every device."""
    cluster = layout.cluster
    return [
        (layout.node_names[node], host.device_type, number)
        for node, host in enumerate(cluster.nodes)
        for number in range(host.num_devices)
    ]


class Driver:
    """A cluster to which jobs are submitted one by one; the policy decides after each."""

    def __init__(self, layout: Layout) -> None:
        self.jobs: dict[int, Job] = {}
        self.grants: dict[int, Grant] = {}
        self.serial_of: dict[str, int] = {}
        self.reasons: dict[str, str] = {}
        self.refused: dict[str, str] = {}
        self.use(layout)

    def use(self, layout: Layout) -> None:
        """Go on with another configuration: jobs keep their devices, but for those on nodes that it does not have."""
        kept = {}
        if self.grants:
            new = {device: number for number, device in enumerate(names_of(layout))}
            old = names_of(self.layout)
            kept = {serial: [new.get(old[d], -1) for d in g.devices] for serial, g in self.grants.items()}
        self.grants = {s: Grant(tuple(sorted(found))) for s, found in kept.items() if min(found) >= 0}
        self.layout, self.policy, self.cluster = layout, HiveD(layout), layout.cluster
        self.state = self.policy.start(layout.cluster)

    def only(self, *names: str) -> None:
        """From now on these nodes are there, and no others; jobs of the others wait."""
        away = [node for node, name in enumerate(self.layout.node_names) if name not in names]
        self.cluster = self.layout.cluster.without(away)
        usable = self.cluster.is_usable
        self.grants = {s: grant for s, grant in self.grants.items() if usable[list(grant.devices)].all()}
        self.decide()

    def submit(self, name: str, num_devices: int, kind: str = "", owner: str = "one", **rest: Any) -> None:
        serial = len(self.serial_of)
        kinds = (kind,) if kind else ()
        job = declared_job(name, serial, num_devices, 1e6, virtual_cluster=owner, device_types=kinds, **rest)
        self.jobs[serial], self.serial_of[name] = job, serial
        self.decide()

    def end(self, name: str) -> None:
        serial = self.serial_of[name]
        del self.jobs[serial]
        self.grants.pop(serial, None)
        self.decide()

    def decide(self) -> None:
        serials = sorted(self.jobs)
        jobs, grants = tuple(self.jobs[s] for s in serials), tuple(self.grants.get(s) for s in serials)
        seen = Seen(self.cluster, np.array(serials, np.int64), jobs, grants)
        allocation, self.state = self.policy.decide(cast(Snapshot, seen), self.state)
        placed = allocation.given
        assert isinstance(placed, Placed)
        self.reasons = {jobs[i].name: reason for i, reason in allocation.reasons.items()}
        for i, reason in allocation.refused.items():
            self.refused[jobs[i].name] = reason
            del self.jobs[serials[i]]
        given = zip(placed.order.tolist(), placed.devices, strict=True)
        self.grants = {serials[i]: Grant(devices) for i, devices in given}
        used = [device for grant in self.grants.values() for device in grant.devices]
        assert len(used) == len(set(used))
        assert self.jobs.keys() - self.grants.keys() == {self.serial_of[name] for name in self.reasons}

    def where(self, name: str) -> dict[str, list[int]]:
        """Devices of a job, by node, counted from 0 in each."""
        grant, cluster = self.grants.get(self.serial_of[name]), self.layout.cluster
        found: dict[str, list[int]] = {}
        for device in grant.devices if grant else ():
            node = int(cluster.node_of[device])
            found.setdefault(self.layout.node_names[node], []).append(
                device - int(cluster.first_device[node])
            )
        return found

    def is_guaranteed(self, name: str) -> bool:
        """Whether a job runs in cells of its virtual cluster."""
        places = list(self.state.bound.jobs[self.serial_of[name]].places)
        bound = self.state.bound.virtual_of[places] >= 0
        assert bound.all() or not bound.any()
        return bool(bound.all())

    def waits(self, name: str) -> bool:
        return not self.where(name)


WHOLE = list(range(16))


def changed(folder: Path, *changes: tuple[str, str]) -> Layout:
    """The configuration with some of its text replaced."""
    text = DESIGN
    for before, after in changes:
        assert before in text
        text = text.replace(before, after)
    path = folder / "changed.yaml"
    path.write_text(text)
    return read_hived(path)
