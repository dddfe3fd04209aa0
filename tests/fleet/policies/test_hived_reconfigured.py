"""HiveD on the cluster of its design configuration when that changes while jobs run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hived_design import DESIGN, WHOLE, Driver, changed

from trainyard.fleet.errors import FleetError
from trainyard.fleet.policies.hived.config import read_hived


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
