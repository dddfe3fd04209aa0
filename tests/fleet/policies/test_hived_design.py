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
from trainyard.fleet.site import FleetError, Site
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


def names_of(layout: Layout) -> list[tuple[str, str, int]]:
    """Node, type, and number in the node of every device."""
    site = layout.site
    return [
        (layout.node_names[node], host.device_type, number)
        for node, host in enumerate(site.hosts)
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
        self.layout, self.policy, self.site = layout, HiveD(layout), layout.site
        self.state = self.policy.start(layout.site)

    def only(self, *names: str) -> None:
        """From now on these nodes are there, and no others; jobs of the others wait."""
        away = [node for node, name in enumerate(self.layout.node_names) if name not in names]
        self.site = self.layout.site.without(away)
        usable = self.site.is_usable
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
        seen = Seen(self.site, np.array(serials, np.int64), jobs, grants)
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

    def is_guaranteed(self, name: str) -> bool:
        """Whether a job runs in cells of its virtual cluster."""
        places = list(self.state.bound.jobs[self.serial_of[name]].places)
        bound = self.state.bound.virtual_of[places] >= 0
        assert bound.all() or not bound.any()
        return bool(bound.all())

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
    # Of a preemptor that leaves nothing is left: who was preempted has its cells again.
    cluster.submit("5", 32, "V", gang=(16, 16), priority=5, **pinned)
    assert cluster.where("5") == {"v30": WHOLE, "v31": WHOLE}
    assert cluster.waits("4")
    cluster.end("5")
    assert cluster.where("4") == {"v30": WHOLE}
    assert cluster.where("2a") == {"v31": WHOLE}


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


def changed(folder: Path, *changes: tuple[str, str]) -> Layout:
    """The configuration with some of its text replaced."""
    text = DESIGN
    for before, after in changes:
        assert before in text
        text = text.replace(before, after)
    path = folder / "changed.yaml"
    path.write_text(text)
    return read_hived(path)


def test_only_nodes_that_are_there_are_used(cluster: Driver) -> None:
    """Where the program is told which nodes a job may have, here the others are away, for all jobs."""
    cluster.only("v10")
    cluster.submit("opportunistic", 1, guaranteed=False)
    assert cluster.where("opportunistic") == {"v10": [0]}
    cluster.end("opportunistic")
    for node in ("v30", "v31"):
        cluster.only(node)
        cluster.submit(node, 1, "V", priority=1, pinned_cell="one-v")
        assert cluster.where(node) == {node: [0]}
        cluster.end(node)
    cluster.submit("gang", 32, "V", gang=(16, 16), priority=1, pinned_cell="one-v")
    assert cluster.reasons["gang"] == (
        "virtual cluster 'one' has no free cells for workers of 16+16 devices on nodes that are there"
    )
    cluster.only("v30", "v31")
    assert cluster.where("gang") == {"v30": WHOLE, "v31": WHOLE}


def test_nobody_is_preempted_for_a_job_that_misses_a_node(cluster: Driver) -> None:
    cluster.only("v30")
    cluster.submit("one node", 16, "V", priority=1, pinned_cell="one-v", yields=True)
    cluster.submit("two nodes", 32, "V", gang=(16, 16), priority=3, pinned_cell="one-v")
    assert cluster.waits("two nodes")
    assert cluster.is_guaranteed("one node")
    cluster.only("v30", "v31")
    assert cluster.where("two nodes") == {"v30": WHOLE, "v31": WHOLE}


def test_cells_are_bound_where_nodes_are_there(tmp_path: Path) -> None:
    """Three half racks are the virtual cluster's; of the third of those that there are, a node is there."""
    cluster = Driver(
        changed(
            tmp_path,
            ("    - {cellType: V-B-RACK4.V-HALF.V-NODE, cellNumber: 2}\n", ""),
            ("V-B-RACK4.V-HALF, cellNumber: 1", "V-B-RACK4.V-HALF, cellNumber: 3"),
        )
    )
    cluster.only("v32", "v33", "v43")
    cluster.submit("half", 32, "V", gang=(16, 16), priority=1, yields=True)
    cluster.submit("node", 16, "V", priority=1, yields=True)
    where = {"half": {"v32": WHOLE, "v33": WHOLE}, "node": {"v43": WHOLE}}
    assert {name: cluster.where(name) for name in where} == where
    # Four nodes are not there: what was tried to place it is undone.
    cluster.submit("rack", 64, "V", gang=(16,) * 4, priority=2)
    assert cluster.waits("rack")
    assert {name: cluster.where(name) for name in where} == where
    assert all(cluster.is_guaranteed(name) for name in where)


def test_a_job_takes_other_cells_than_those_of_bad_nodes(cluster: Driver) -> None:
    """Of all cells that are its virtual cluster's, in whatever chain."""
    every = {name for name in cluster.layout.node_names if name.startswith("v")}
    cluster.only(*every - {"v10", "v50", "v32"})
    cluster.submit("a", 16, "V")
    assert cluster.where("a") == {"v33": WHOLE}
    cluster.submit("b", 16, "V")
    assert cluster.where("b") == {"v40": WHOLE}


def test_bad_nodes_are_the_loss_of_whoever_binds_last(tmp_path: Path) -> None:
    """Of a rack of three nodes, two are the one virtual cluster's and one is the other's."""
    cluster = Driver(changed(tmp_path, ("C-NODE, cellNumber: 1", "V-A-RACK3.V-NODE, cellNumber: 1")))
    cluster.only("v20")
    cluster.submit("one", 16, "V")
    assert cluster.where("one") == {"v20": WHOLE}
    # While v21 is bad, both could still bind v22; once one has, nothing is left for the other.
    cluster.only("v20", "v22")
    cluster.submit("two", 16, "V", owner="two")
    assert cluster.where("two") == {"v22": WHOLE}
    cluster.submit("one more", 16, "V")
    assert cluster.waits("one more")
    cluster.end("two")
    assert cluster.where("one more") == {"v22": WHOLE}
    # With v22 bad, too, there is nothing for anybody; when it is back, again for either.
    cluster.only("v20")
    cluster.submit("two", 16, "V", owner="two")
    assert cluster.waits("one more")
    assert cluster.waits("two")
    cluster.end("one more")
    cluster.only("v20", "v22")
    assert cluster.where("two") == {"v22": WHOLE}
    cluster.only()
    cluster.end("one")
    assert cluster.waits("two")


def test_a_larger_cell_is_split_for_a_bad_node_if_others_keep_theirs(tmp_path: Path) -> None:
    """The program calls it safe relaxed buddy allocation: four nodes are one's, and half a rack the other's."""
    cluster = Driver(
        changed(
            tmp_path,
            ("V-B-RACK4.V-HALF.V-NODE, cellNumber: 2", "V-B-RACK4.V-HALF.V-NODE, cellNumber: 4"),
            ("    - {cellType: V-NODE, cellNumber: 2}\n", ""),
            ("    - {cellType: V-B-RACK4.V-HALF, cellNumber: 1}\n", ""),
            ("C-NODE, cellNumber: 1", "V-B-RACK4.V-HALF, cellNumber: 1"),
        )
    )
    cluster.only("v32", "v33", "v42", "v43")
    cluster.submit("first", 16, "V")
    assert cluster.where("first") == {"v32": WHOLE}
    # The buddy of its node is bad: the whole rack is split, since half of it is left for the other.
    cluster.only("v32", "v42", "v43")
    cluster.submit("second", 16, "V")
    assert cluster.where("second") == {"v42": WHOLE}
    # That half is not split, though its nodes are the only good ones.
    cluster.only("v32", "v42", "v40", "v41")
    cluster.submit("third", 16, "V")
    assert cluster.waits("third")
    cluster.submit("half", 32, "V", owner="two", gang=(16, 16))
    assert cluster.where("half") == {"v40": WHOLE, "v41": WHOLE}


def submit_many(cluster: Driver) -> None:
    """The jobs that the program's tests submit before they change its configuration."""
    cluster.submit("1", 1, "V", yields=True)
    cluster.submit("2", 1, "V", priority=1, yields=True)
    cluster.submit("3", 8, "V", priority=2, yields=True)
    cluster.submit("4", 1, "V", guaranteed=False)
    nodes: dict[str, Any] = {"gang": (16, 16), "yields": True}
    cluster.submit("5-6", 32, "V", pinned_cell="one-v", priority=1, **nodes)
    cluster.submit("8-9", 12, owner="two", gang=(7, 5), priority=1, yields=True)
    cluster.submit("18-19", 32, "V", priority=1, **nodes)
    cluster.submit("20-21", 32, "V", priority=1, **nodes)
    cluster.submit("22-23", 32, "V", guaranteed=False, **nodes)
    cluster.submit("24", 2, "C", owner="two", yields=True)
    cluster.submit("25", 2, "C", owner="two", priority=1)


SPLIT = """  - {cellType: V-NODE, cellAddress: v40}
  - {cellType: V-NODE, cellAddress: v41}
  - {cellType: V-NODE, cellAddress: v42}
  - {cellType: V-NODE, cellAddress: v43}
  - cellType: V-B-RACK4
    cellChildren:
    - {cellChildren: [{cellAddress: v60}, {cellAddress: v61}]}
    - {cellChildren: [{cellAddress: v62}, {cellAddress: v63}]}
"""


def test_jobs_go_on_in_other_physical_cells(tmp_path: Path, cluster: Driver) -> None:
    """Nodes without parts, a node that is no longer there, a rack that is split, and fewer virtual cells."""
    submit_many(cluster)
    before = {name: cluster.where(name) for name in cluster.serial_of}
    rack = DESIGN[DESIGN.rindex("  - cellType: V-B-RACK4") : DESIGN.index("  - {cellType: I-PAIR")]
    layout = changed(
        tmp_path,
        ("{childCellType: V-8, childCellNumber: 2, isNode", "{childCellType: V, childCellNumber: 16, isNode"),
        ("cellAddress: v30", "cellAddress: v39"),
        ("P-RACK3.P-NODE, cellNumber: 2", "P-RACK3.P-NODE, cellNumber: 1"),
        (rack, SPLIT),
    )
    cluster.use(layout)
    cluster.decide()
    # One node of its pinned cell is another now: it begins anew there. There is no other job that moves.
    before["5-6"] = {"v39": WHOLE, "v31": WHOLE}
    assert {name: cluster.where(name) for name in before} == before
    without = {"4", "8-9", "20-21", "22-23", "24"}
    assert {name for name in before if not cluster.is_guaranteed(name)} == without


def test_jobs_go_on_where_other_cells_are_pinned(tmp_path: Path, cluster: Driver) -> None:
    cluster.submit("small", 1, "V")
    cluster.submit("pinned", 32, "V", gang=(16, 16), pinned_cell="one-v")
    cluster.submit("half", 32, "V", gang=(16, 16))
    cluster.submit("tiny", 1, "C", pinned_cell="one-c")
    before = {
        "pinned": {"v30": WHOLE, "v31": WHOLE},
        "half": {"v32": WHOLE, "v33": WHOLE},
        "tiny": {"p2": [0]},
    }
    assert {name: cluster.where(name) for name in before} == before
    cluster.use(
        changed(
            tmp_path,
            ("{pinnedCellId: one-v, cellChildren: [{cellAddress: v30}", "{cellChildren: [{cellAddress: v30}"),
            ("{cellChildren: [{cellAddress: v32}", "{pinnedCellId: one-v, cellChildren: [{cellAddress: v32}"),
        )
    )
    cluster.decide()
    assert {name: cluster.where(name) for name in before} == before
    assert [cluster.is_guaranteed(name) for name in before] == [False, False, True]
    # Whoever has a right to the pinned cell gets it at once.
    cluster.submit("other", 32, "V", gang=(16, 16), pinned_cell="one-v")
    assert cluster.where("other") == {"v32": WHOLE, "v33": WHOLE}
    # Who lost it goes to other cells of the virtual cluster: the smallest that is free, where the other has no guarantee.
    assert cluster.where("half") == {"v30": WHOLE, "v31": WHOLE}
    assert cluster.waits("pinned")


def test_virtual_clusters_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    wrong = (
        ("V-B-RACK4.V-HALF.V-NODE, cellNumber: 2", "C-NODE, cellNumber: 2"),
        ("V-A-RACK3.V-NODE, cellNumber: 2", "C-NODE.C, cellNumber: 2"),
    )
    with pytest.raises(FleetError, match="have 3 cells of type C-NODE; beside pinned and larger ones"):
        changed(tmp_path, *wrong)
