"""HiveD on a cluster of the shape of the design configuration that comes with the authors' program.

It has every kind of hierarchy, pinned cells, a node with devices of two types, and devices numbered out of order. Where
jobs go, wait and are preempted is as the tests of that program say.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from numpy.typing import NDArray

from trainyard.fleet.hived_config import read_hived
from trainyard.fleet.policies.hived import HiveD
from trainyard.fleet.site import Site
from trainyard.fleet.snapshot import Snapshot
from trainyard.fleet.virtual import Layout
from trainyard.fleet.workload.job import Grant, Job, declared_job

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

    site: Site
    serial: NDArray[np.int64]
    jobs: tuple[Job, ...]
    grants: tuple[Grant | None, ...]

    @property
    def is_running(self) -> NDArray[np.bool_]:
        return np.array([grant is not None for grant in self.grants])

    def job(self, number: int) -> Job:
        return self.jobs[number]


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
        """Go on with other virtual clusters."""
        self.layout, self.policy = layout, HiveD(layout)
        self.state = self.policy.start(layout.site)

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
        seen = Seen(self.layout.site, np.array(serials, np.int64), jobs, grants)
        targets, self.state = self.policy.decide(cast(Snapshot, seen), self.state)
        assert targets.devices is not None
        self.reasons = {jobs[i].name: reason for i, reason in targets.reasons.items()}
        for i, reason in targets.refused.items():
            self.refused[jobs[i].name] = reason
            del self.jobs[serials[i]]
        given = zip(targets.order.tolist(), targets.devices, strict=True)
        self.grants = {serials[i]: Grant(devices) for i, devices in given}
        used = [device for grant in self.grants.values() for device in grant.devices]
        assert len(used) == len(set(used))
        assert self.jobs.keys() - self.grants.keys() == {self.serial_of[name] for name in self.reasons}

    def where(self, name: str) -> dict[str, list[int]]:
        """Devices of a job, by node, counted from 0 in each."""
        grant, site = self.grants.get(self.serial_of[name]), self.layout.site
        found: dict[str, list[int]] = {}
        for device in grant.devices if grant else ():
            node = int(site.node_of[device])
            found.setdefault(self.layout.node_names[node], []).append(device - int(site.first_device[node]))
        return found

    def waits(self, name: str) -> bool:
        return not self.where(name)


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    path = tmp_path / "design.yaml"
    path.write_text(DESIGN)
    return read_hived(path)


@pytest.fixture
def cluster(layout: Layout) -> Driver:
    return Driver(layout)


WHOLE = list(range(16))


def test_jobs_of_a_virtual_cluster_are_packed_and_opportunistic_ones_stay_away(cluster: Driver) -> None:
    cluster.submit("a", 1, "V")
    assert cluster.where("a") == {"v10": [0]}
    cluster.submit("buddy", 1, "V", priority=1)
    assert cluster.where("buddy") == {"v10": [1]}
    # Eight devices are one cell; nobody is preempted for it, though its priority is higher.
    cluster.submit("eight", 8, "V", priority=2)
    assert cluster.where("eight") == {"v10": [8, 9, 10, 11, 12, 13, 14, 15]}
    cluster.submit("opportunistic", 1, "V", guaranteed=False)
    assert cluster.where("opportunistic") == {"v50": [0]}


def test_pinned_cells_are_used_when_asked_for_and_by_higher_priorities_first(cluster: Driver) -> None:
    cluster.submit("a", 32, "V", gang=(16, 16), priority=1, pinned_cell="one-v", yields=True)
    assert cluster.where("a") == {"v30": WHOLE, "v31": WHOLE}
    cluster.submit("b", 32, "V", gang=(16, 16), priority=2, pinned_cell="one-v", yields=True)
    assert cluster.where("b") == {"v30": WHOLE, "v31": WHOLE}
    # It would go on without a guarantee, but the other needs the very devices.
    assert cluster.waits("a")
    assert cluster.reasons["a"] == "virtual cluster 'one' has no free cells for workers of 16+16 devices"
    cluster.end("b")
    assert cluster.where("a") == {"v30": WHOLE, "v31": WHOLE}


def test_jobs_that_do_not_ask_for_a_pinned_cell_do_not_get_it(cluster: Driver) -> None:
    cluster.submit("i", 16, "I", owner="one")
    assert cluster.refused["i"] == "virtual cluster 'one' has no cells of I"
    cluster.submit("pinned", 3, owner="one", pinned_cell="one-i")
    assert cluster.where("pinned") == {"i0": [0, 1, 2]}
    cluster.submit("opportunistic", 16, "I", owner="two", guaranteed=False)
    assert cluster.where("opportunistic") == {"i1": WHOLE}


def test_more_than_a_virtual_cluster_has(cluster: Driver) -> None:
    """Three nodes are there, two of them are the virtual cluster's, and two sockets are not a node."""
    cluster.submit("three nodes", 24, "P", owner="two", gang=(8, 8, 8), priority=1)
    assert "'two' has no cells for workers of 8+8+8 devices" in cluster.refused["three nodes"]
    cluster.submit("as much in sockets", 24, "P", owner="two", gang=(4, 4, 8, 8), priority=1)
    assert "as much in sockets" in cluster.refused
    cluster.submit("sockets last", 8, "P", owner="two", gang=(8,))
    cluster.submit("nodes", 8, "P", owner="two", gang=(8,))
    cluster.submit("waits", 8, "P", owner="two", gang=(8,))
    assert cluster.reasons == {"waits": "virtual cluster 'two' has no free cells for workers of 8 devices"}
    cluster.submit("four", 4, "P", owner="two")
    cluster.submit("four more", 4, "P", owner="two")
    assert not cluster.waits("four more")
    cluster.submit("too many", 1, "P", owner="two")
    assert cluster.waits("too many")
    cluster.end("nodes")
    assert not cluster.waits("waits")


def test_a_gang_of_unequal_workers_of_any_type(cluster: Driver) -> None:
    cluster.submit("a", 12, owner="two", gang=(7, 5), priority=1)
    assert cluster.where("a") == {"p2": [0, 1, 2, 3, 4], "p1": [0, 1, 2, 3, 4, 5, 6]}


def test_nodes_of_one_gang_are_near_and_what_is_free_is_not_split_before_its_time(cluster: Driver) -> None:
    cluster.submit("small", 1, "V", priority=2)
    cluster.submit("pinned", 32, "V", gang=(16, 16), pinned_cell="one-v")
    # The half of a rack that the pinned cell left is split before the whole rack.
    cluster.submit("two nodes", 32, "V", gang=(16, 16), priority=1)
    assert cluster.where("two nodes") == {"v32": WHOLE, "v33": WHOLE}
    cluster.submit("half a rack", 32, "V", gang=(16, 16), priority=1)
    assert cluster.where("half a rack") == {"v40": WHOLE, "v41": WHOLE}
    cluster.submit("opportunistic", 32, "V", gang=(16, 16), guaranteed=False)
    assert cluster.where("opportunistic") == {"v42": WHOLE, "v43": WHOLE}


def test_a_job_that_yields_goes_on_elsewhere_than_its_cells(cluster: Driver) -> None:
    """The node of the virtual cluster goes to the higher priority, and is another one now."""
    cluster.submit("low", 2, "C", owner="two", priority=0, yields=True)
    assert cluster.where("low") == {"c0": [0, 1]}
    cluster.submit("middle", 2, "C", owner="two", priority=1)
    assert cluster.where("middle") == {"c1": [0, 1]}
    assert cluster.where("low") == {"c0": [0, 1]}
    # The one that does not yield stops.
    cluster.submit("high", 2, "C", owner="two", priority=2)
    assert cluster.where("high") == {"c1": [0, 1]}
    assert cluster.waits("middle")
    assert cluster.where("low") == {"c0": [0, 1]}


def test_one_preemption_after_the_other(cluster: Driver) -> None:
    pinned = {"pinned_cell": "one-v"}
    cluster.submit("1", 32, "V", gang=(16, 16), priority=1, **pinned)
    cluster.submit("2a", 16, "V", priority=2, **pinned)
    cluster.submit("2b", 16, "V", priority=2, **pinned)
    assert cluster.where("2a") == {"v30": WHOLE}
    assert cluster.where("2b") == {"v31": WHOLE}
    assert cluster.waits("1"), "a gang runs as a whole or not at all"
    cluster.submit("2c", 16, "V", priority=2, **pinned)
    assert cluster.waits("2c"), "jobs of one priority do not preempt each other"
    cluster.submit("3", 32, "V", gang=(16, 16), priority=3, **pinned)
    assert cluster.where("3") == {"v30": WHOLE, "v31": WHOLE}
    assert all(cluster.waits(name) for name in ("1", "2a", "2b", "2c"))
    cluster.submit("4", 16, "V", priority=4, **pinned)
    assert cluster.where("4") == {"v30": WHOLE}
    assert cluster.waits("3")
    assert cluster.where("2a") == {"v31": WHOLE}, "what the gang leaves goes to the next"


def test_opportunistic_jobs_leave_when_a_guaranteed_one_comes(cluster: Driver) -> None:
    for i in range(3):
        cluster.submit(f"opportunistic {i}", 2, "C", owner="one", guaranteed=False)
    # One device of the third node is pinned; nobody uses it.
    assert cluster.where("opportunistic 2") == {"p2": [0, 1]}
    cluster.submit("guaranteed", 2, "C", owner="two")
    assert cluster.where("guaranteed") == {"c0": [0, 1]}
    assert [cluster.waits(f"opportunistic {i}") for i in range(3)] == [True, False, False]
    assert cluster.reasons["opportunistic 0"] == "the cluster has no idle 2-device cell"
    # Among several cells the guaranteed job takes one that is idle.
    cluster.end("guaranteed")
    cluster.end("opportunistic 1")
    cluster.submit("again", 2, "C", owner="two")
    assert cluster.where("again") == {"c1": [0, 1]}
    assert not cluster.waits("opportunistic 0")


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"kind": "V", "owner": "two"}, "'two' has no cells of V"),
        ({"owner": "three"}, "no virtual cluster 'three'; there are one, two"),
        ({"owner": "two", "pinned_cell": "one-v"}, "no pinned cell 'one-v'; it has none"),
        ({"pinned_cell": "else"}, "no pinned cell 'else'; it has one-c, one-v, one-i"),
        ({"pinned_cell": "one-c", "guaranteed": False}, "cannot ask for pinned cell 'one-c'"),
        ({"priority": 1001}, "priority 1001 is not from 0 to 1000"),
        ({"gang": (2, 2)}, "workers of 2+2 devices are not 1 devices"),
    ],
)  # fmt: skip
def test_requests_that_can_never_be_met_are_refused(
    cluster: Driver, asked: dict[str, object], said: str
) -> None:
    cluster.submit("wrong", 1, **asked)  # type: ignore[arg-type]
    assert said in cluster.refused["wrong"]


def test_jobs_go_on_under_other_virtual_clusters(tmp_path: Path, cluster: Driver) -> None:
    """A job keeps its guarantee if its virtual cluster still has the cells, and else goes on without it."""
    cluster.submit("stays", 8, "P", owner="two")
    cluster.submit("loses", 8, "P", owner="two")
    cluster.submit("else", 16, "V", owner="one")
    before = [cluster.where(name) for name in ("stays", "loses", "else")]
    path = tmp_path / "fewer.yaml"
    path.write_text(DESIGN.replace("P-RACK3.P-NODE, cellNumber: 2", "P-RACK3.P-NODE, cellNumber: 1"))
    cluster.use(read_hived(path))
    cluster.decide()
    assert [cluster.where(name) for name in ("stays", "loses", "else")] == before
    # All of the virtual cluster's devices: its one node, and its sockets.
    cluster.submit("waits", 8, "P", owner="two")
    cluster.submit("sockets", 8, "P", owner="two", gang=(4, 4))
    assert cluster.waits("waits")
    assert not cluster.waits("sockets")
    cluster.submit("needs both", 8, "P", owner="two", priority=1)
    assert cluster.waits("stays")
    assert not cluster.waits("loses")
