"""Collectives of several groups at the same time: links that they share slow them, and the slowest counts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from trainyard.cost.collectives import collective_cost, collective_costs
from trainyard.hardware import Cluster, Edge, Fabric, Link, Node, device_named, parse_cluster
from trainyard.hardware.interconnects import Interconnect
from trainyard.hardware.nodes import switched_node


def test_groups_that_share_nics_slow_each_other() -> None:
    cluster = parse_cluster("4x8xA100-80G@200Gb")
    groups = tuple(tuple(range(place, 32, 8)) for place in range(8))
    alone = collective_cost(cluster, "all_reduce", groups[0], 1e9)
    together = collective_cost(cluster, "all_reduce", groups[0], 1e9, groups)
    assert together.seconds / alone.seconds == pytest.approx(8.0, rel=0.02)
    assert "nic0" in together.bottleneck
    inside = tuple(tuple(range(8 * node, 8 * node + 8)) for node in range(4))
    assert collective_cost(cluster, "all_reduce", inside[1], 1e9, inside).seconds == pytest.approx(
        collective_cost(cluster, "all_reduce", inside[1], 1e9).seconds
    )


def _two_nodes_of_four() -> Cluster:
    """A NIC of 10 GB/s each way for each node; its links add 2 us to every message between the nodes."""
    inside = Interconnect("switch", 100e9, 1.0, 1e-6, "test")
    network = Interconnect("net", 10e9, 1.0, 2e-6, "test")
    node = Node(switched_node(4, inside, 1, network), (device_named("A100-80G"),) * 4)
    return Cluster("two", (node, node))


def test_four_groups_hold_a_quarter_of_the_nic_each_way() -> None:
    cluster = _two_nodes_of_four()
    launch_s = cluster.device(0).collective_launch_s
    groups = (
        (0, 4),
        (1, 5),
        (2, 6),
        (3, 7),
    )  # data parallel across the nodes, one group for each tensor index

    def costs_s(*groups: tuple[int, int]) -> dict[str, float]:
        costs = collective_costs(cluster, "all_reduce", groups[0], 0.8e9, groups)
        return {cost.algorithm: cost.seconds - launch_s for cost in costs}

    # A ring of two has two rounds. In each, both ranks send half of 0.8 GB to the other: a NIC carries 0.4 GB out and
    # 0.4 GB in, which do not slow each other: 2 us + 0.4 GB / (10 GB/s) = 40.002 ms a round.
    assert costs_s(groups[0])["ring"] == pytest.approx(2 * 40.002e-3, rel=1e-9)
    # Four groups: 4 x 0.4 GB out and as much in, so a group holds a quarter of either direction: 2 us + 160 ms.
    together = costs_s(*groups)
    assert together["ring"] == pytest.approx(2 * 160.002e-3, rel=1e-9)
    # A tree sends everything up to the roots, then down: with all roots in node 0, 4 x 0.8 GB one way, then the other.
    assert together["tree"] == pytest.approx(2 * 320.002e-3, rel=1e-9)
    # With two roots in each node, 2 x 0.8 GB go each way at the same time: half as long.
    assert costs_s((0, 4), (5, 1), (2, 6), (7, 3))["tree"] == pytest.approx(2 * 160.002e-3, rel=1e-9)
    # Inside the nodes every device has its own link: 6 rounds of 1 us + 0.2 GB / (100 GB/s) = 2.001 ms, whoever else.
    inside = ((0, 1, 2, 3), (4, 5, 6, 7))
    ring = collective_costs(cluster, "all_reduce", inside[0], 0.8e9, inside)[0]
    assert (ring.algorithm, ring.seconds - launch_s) == ("ring", pytest.approx(6 * 2.001e-3, rel=1e-9))


def test_only_sends_of_the_same_direction_slow_each_other() -> None:
    cluster = _two_nodes_of_four()
    alone, against, along = (
        collective_cost(cluster, "send", (0, 4), 1e9, others).seconds
        for others in ((), ((4, 0),), ((1, 5), (5, 1)))
    )
    assert against == alone
    assert along - alone == pytest.approx(0.1)  # another 1 GB through 10 GB/s
    # On a wire that both directions share they do, between the same two ranks, too; each crosses it twice.
    wire = tuple(Edge(*ends, 0) for node in ("node0", "node1") for ends in ((node, "core"), ("core", node)))
    half_duplex = Cluster("bus", cluster.nodes, Fabric("bus", (Link("bus", 1e9, 0.0),), wire))
    beside = collective_cost(half_duplex, "send", (0, 4), 1e9, ((0, 4), (4, 0))).seconds
    assert beside - collective_cost(half_duplex, "send", (0, 4), 1e9).seconds == pytest.approx(2.0)


def test_the_slowest_of_the_groups_counts() -> None:
    # Three groups of three ranks on nodes of eight: two stay in the first node, the third crosses to the second.
    cluster = parse_cluster("2x8xA100-80G")
    groups = tuple(tuple(range(first, 9, 3)) for first in range(3))
    inside, _, across = (collective_cost(cluster, "all_reduce", group, 1e9) for group in groups)
    assert across.seconds > 5 * inside.seconds
    for first in groups:
        together = collective_cost(cluster, "all_reduce", first, 1e9, groups)
        assert together.seconds == pytest.approx(across.seconds)
        assert together.bottleneck == across.bottleneck


def test_groups_of_other_shapes_are_heard() -> None:
    cluster = parse_cluster("2x4xA100-80G@100Gb")
    alone = collective_cost(cluster, "all_gather", (0, 4), 1e9)
    beside = collective_cost(cluster, "all_gather", (0, 4), 1e9, ((1, 2, 5),))
    assert beside.seconds > 1.2 * alone.seconds


def test_fabric_links_are_shared() -> None:
    node = parse_cluster("1x4xA100-80G").nodes[0]
    links = tuple(Link(f"wire{i}", 1e9, 1e-6) for i in range(4))
    edges = (
        Edge("node0", "core", 0),
        Edge("core", "node0", 1),
        Edge("node1", "core", 2),
        Edge("core", "node1", 3),
    )
    cluster = Cluster("thin", (node, node), Fabric("thin core", links, edges))
    cost = collective_cost(cluster, "send", (0, 5), 1e9)
    assert cost.bottleneck.startswith("wire")
    assert cost.seconds == pytest.approx(1.0, rel=0.01)
    assert collective_cost(cluster, "all_to_all", range(8), 8e9).seconds == pytest.approx(16.0, rel=0.01)


def test_a_send_and_a_sum_on_unlike_nodes_by_hand() -> None:
    """Three devices on a switch beside two on a slower one, whose devices take longer to launch."""
    fast, slow = Interconnect("fast", 1e11, 1.0, 1e-6, "test"), Interconnect("slow", 2e10, 1.0, 3e-6, "test")
    nic, thin = Interconnect("nic", 1e10, 1.0, 2e-6, "test"), Interconnect("thin", 4e9, 1.0, 8e-6, "test")
    device = device_named("A100-80G")
    late = replace(device, collective_launch_s=50e-6)
    first = Node(switched_node(3, fast, 1, nic), (replace(device, collective_launch_s=20e-6),) * 3)
    cluster = Cluster("unlike", (first, Node(switched_node(2, slow, 1, thin), (late,) * 2)))
    # Half of the latency of each NIC's kind; the slower of the two links counts, and the later of the two launches.
    send = collective_cost(cluster, "send", (1, 3), 1e6)
    assert send.seconds == pytest.approx(50e-6 + 1e-6 + 4e-6 + 1e6 / 4e9)
    assert send.moving_s == pytest.approx(1e6 / 4e9)
    # A ring of all five: 8 rounds of a fifth, of which the thin NIC carries one in and one out.
    costs = {cost.algorithm: cost for cost in collective_costs(cluster, "all_reduce", range(5), 1e8)}
    assert costs["ring"].seconds == pytest.approx(50e-6 + 8 * (5e-6 + 2e7 / 4e9), rel=1e-6)
    # Inside of the first node nobody waits for the second.
    costs = {cost.algorithm: cost for cost in collective_costs(cluster, "all_reduce", range(3), 1e8)}
    assert costs["ring"].seconds == pytest.approx(20e-6 + 4 * (1e-6 + 1e8 / 3 / 1e11))
    inside = {cost.algorithm: cost for cost in collective_costs(cluster, "all_reduce", (3, 4), 1e8)}
    assert inside["ring"].seconds == pytest.approx(50e-6 + 2 * (3e-6 + 5e7 / 2e10))
    # Beside each other, each has its own links: the slower one counts.
    both = collective_cost(cluster, "all_reduce", (0, 1), 1e8, ((0, 1), (3, 4)))
    assert both.seconds == pytest.approx(inside["ring"].seconds)
