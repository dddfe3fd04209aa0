"""HiveD on the cluster of its design configuration where nodes are away."""

from __future__ import annotations

from pathlib import Path

from hived_design import WHOLE, Driver, changed


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
