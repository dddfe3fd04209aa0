"""HiveD on the cluster of its design configuration: where jobs go, wait and are preempted."""

from __future__ import annotations

import pytest
from hived_design import WHOLE, Driver


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
