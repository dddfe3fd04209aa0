"""Messages of a rank that are on the way at the same time slow each other where they cross the same links."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from made_plan import made_plan
from torch import nn

from trainyard.cost.ops import Roofline
from trainyard.engine import simulate
from trainyard.hardware import Cluster, Node, device_named
from trainyard.hardware.interconnects import Interconnect
from trainyard.hardware.nodes import switched_node
from trainyard.job.lower.lower import Lowered, lower
from trainyard.job.lower.signatures import Group, Message
from trainyard.job.schedules import make_schedule
from trainyard.job.simulation.build import Assembly
from trainyard.job.simulation.prices import Prices, Seconds
from trainyard.job.task import Task
from trainyard.program.model import Model


@pytest.fixture(scope="module")
def cluster() -> Cluster:
    """Two nodes of four; a NIC of 10 GB/s each way for each node, 2 us for every message between the nodes."""
    inside = Interconnect("switch", 100e9, 1.0, 1e-6, "test")
    network = Interconnect("net", 10e9, 1.0, 2e-6, "test")
    node = Node(switched_node(4, inside, 1, network), (device_named("A100-80G"),) * 4)
    return Cluster("two", (node, node))


@pytest.fixture(scope="module")
def lowered() -> Lowered:
    """Rows over the nodes, and four ranks within each."""
    batch = {"x": torch.ones(8, 4)}
    model = Model("line", nn.Linear(4, 4), lambda net, batch: net(batch["x"]).sum(), batch)
    program = Task(model).program(8)
    return lower(program, made_plan(program, 8, make_schedule("gpipe", 1, 1), data=2, tensor=4))


def ends_s(lowered: Lowered, cluster: Cluster, *messages: tuple[str, Seconds]) -> list[float]:
    """When messages end that all begin at once, each on a lane of its own."""
    assembly = Assembly(lowered, cluster)
    assembly.add_ranks([{}])
    builder, tasks = assembly.builder, []
    for lane, seconds in messages:
        whole, moving = np.array([seconds.whole]), np.array([seconds.moving])
        links = assembly.crossed(0, moving, np.array([seconds.is_between_nodes]))
        kinds = builder.label(lane), builder.category("all_reduce")
        tasks.append(int(assembly.add_work(0, lane, whole, *kinds, moving, links)[0]))
    timeline = simulate(builder.build())
    return [float(timeline.end_s[task]) for task in tasks]


def test_collectives_of_different_kinds_share_the_nic(lowered: Lowered, cluster: Cluster) -> None:
    prices, data = Prices(lowered.plan, cluster, Roofline()), Group(("data",))
    reduced = prices.message_s(Message("all_reduce", data, 800_000_000, "gradients"), 0)
    gathered = prices.message_s(Message("all_gather", data, 800_000_000, "parameters"), 0)
    launch_s = cluster.device(0).collective_launch_s
    # Four groups send 0.4 GB each through a NIC in each of two rounds, or in one: 160 ms and 2 us a round.
    assert reduced == pytest.approx((launch_s + 2 * 160.002e-3, 320e-3, True), rel=1e-9)
    assert gathered == pytest.approx((launch_s + 160.002e-3, 160e-3, True), rel=1e-9)
    # The gathering moves 2 us alone, then each has half of the NIC. When the gathering has ended, the reduction has
    # moved as much as that less 2 us, and has the NIC for the rest.
    found = ends_s(lowered, cluster, ("communication", reduced), ("compute", gathered))
    both_s = launch_s + 4e-6 + 2 * (160e-3 - 2e-6)
    assert found == pytest.approx([both_s + 160e-3 + 2e-6, both_s], rel=1e-9)


def test_links_inside_a_node_are_others(lowered: Lowered, cluster: Cluster) -> None:
    out, inside = Seconds(3.0, 2.5, True), Seconds(2.0, 2.0, False)
    assert ends_s(lowered, cluster, ("communication", out), ("tensor communication", inside)) == [3.0, 2.0]
    # What takes time without moving anything slows nobody.
    assert ends_s(lowered, cluster, ("communication", out), ("compute", Seconds(5.0))) == [3.0, 5.0]
    assert ends_s(lowered, cluster, ("compute", inside), ("tensor communication", inside)) == [4.0, 4.0]
