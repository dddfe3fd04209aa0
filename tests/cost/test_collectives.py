"""Collectives: the programs are correct, cost what their sends cost one by one, and large A100 groups cost what was
measured."""

from __future__ import annotations

import csv
from collections import Counter
from dataclasses import replace
from functools import lru_cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shared_data import DATA, require_data

from trainyard.cost.collective_layout import Layout, pack_rings
from trainyard.cost.collectives import (
    ALGORITHMS,
    KINDS,
    CollectiveProgram,
    Send,
    check_program,
    collective_cost,
    collective_costs,
    collective_program,
)
from trainyard.hardware import (
    Cluster,
    CollectiveSample,
    HardwareError,
    MachineProfile,
    MatmulSample,
    MemorySample,
    Node,
    cluster_of_profile,
    device_named,
    parse_cluster,
)
from trainyard.hardware.interconnects import Interconnect
from trainyard.hardware.nodes import cube_mesh_node, pcie_node, switched_node, torus_node

_GROUP_KINDS = tuple(kind for kind in KINDS if kind != "send")


def _node(per_node: int, local: Interconnect, network: Interconnect, kind: str, launch_s: float) -> Node:
    build = {"switch": switched_node, "torus": torus_node, "pcie": pcie_node}[kind]
    device = replace(device_named("A100-80G"), collective_launch_s=launch_s)
    return Node(build(per_node, local, max(1, per_node // 2), network), (device,) * per_node)


_WIRES = st.builds(
    Interconnect,
    st.just("wire"),
    st.floats(1e8, 1e12),
    st.floats(0.1, 1.0),
    st.floats(0.0, 1e-3),
    st.just("drawn"),
)
_NODES = st.builds(
    _node,
    st.integers(1, 8),
    _WIRES,
    _WIRES,
    st.sampled_from(["switch", "torus", "pcie"]),
    st.sampled_from([1e-6, 5e-6, 3e-5]),
)
# Of alike nodes, and of nodes with other sizes, links and devices.
_CLUSTERS = st.one_of(
    st.builds(lambda node, count: Cluster("alike", (node,) * count), _NODES, st.integers(1, 4)),
    st.builds(lambda nodes: Cluster("unlike", tuple(nodes)), st.lists(_NODES, min_size=2, max_size=4)),
)


def _seconds(cluster: Cluster, *programs: CollectiveProgram) -> float:
    """Seconds of programs at the same time, send by send: a round lasts until its slowest send is through."""
    route = lru_cache(cluster.route)
    total_s = 0.0
    for rounds in zip(*(program.rounds for program in programs), strict=True):
        routes = [
            (route(send.source_rank, send.target_rank), send.num_bytes) for sends in rounds for send in sends
        ]
        load_s: Counter[int] = Counter()
        for links, num_bytes in routes:
            for link in links:
                load_s[link] += num_bytes / cluster.links[link].bandwidth_bytes_per_s
        total_s += max(
            sum(cluster.links[link].latency_s for link in links) + max(load_s[link] for link in links)
            for links, _ in routes
        )
    return total_s


def _of_nothing(sends: tuple[Send, ...]) -> tuple[Send, ...]:
    """The same sends without their bytes: what is left of them are latencies."""
    return tuple(replace(send, num_bytes=0.0) for send in sends)


@pytest.mark.parametrize("kind", _GROUP_KINDS)
@pytest.mark.parametrize("size", range(2, 18))
def test_programs_leave_every_contribution_exactly_once(kind: str, size: int) -> None:
    shapes = [f"1x{size}xA100-80G", f"{size}x1xA100-80G"]
    shapes += [f"{size // m}x{m}xV100-32G" for m in (2, 3, 4, 8) if size % m == 0 and size > m]
    seen = set()
    for shape in shapes:
        cluster = parse_cluster(shape)
        for cost in collective_costs(cluster, kind, range(size), 1000.0):
            program = collective_program(cluster, kind, cost.algorithm, range(size), 1000.0, num_pieces=3)
            assert check_program(program) == []
            assert sorted(program.ranks) == list(range(size))
            seen.add(cost.algorithm)
    possible = set(ALGORITHMS[kind]) if size in (4, 8, 16) else {ALGORITHMS[kind][0]}
    assert possible <= seen


@pytest.mark.parametrize("kind", [*_GROUP_KINDS, "send"])
def test_checker_sees_a_lost_and_a_doubled_send(kind: str) -> None:
    cluster = parse_cluster("4xA100-80G")
    algorithm = ALGORITHMS[kind][0]
    ranks = (2, 3) if kind == "send" else (3, 1, 0, 2)
    program = collective_program(cluster, kind, algorithm, ranks, 64.0)
    assert check_program(program) == []
    last = program.rounds[-1]
    lost = replace(program, rounds=(*program.rounds[:-1], last[1:]))
    assert check_program(lost)
    wrong_size = replace(program, rounds=(*program.rounds[:-1], (replace(last[0], num_bytes=1.0), *last[1:])))
    assert check_program(wrong_size)
    if kind in ("all_reduce", "reduce_scatter"):
        doubled = replace(program, rounds=(program.rounds[0] + program.rounds[0][:1], *program.rounds[1:]))
        assert check_program(doubled)


@settings(max_examples=45)
@given(cluster=_CLUSTERS, num_bytes=st.floats(0.0, 1e10), kind=st.sampled_from(_GROUP_KINDS), data=st.data())
def test_cost_is_the_sum_over_the_rounds_of_the_program(
    cluster: Cluster, num_bytes: float, kind: str, data: st.DataObject
) -> None:
    if cluster.num_devices < 2:
        return
    whole = data.draw(st.booleans())
    everyone = list(range(cluster.num_devices))
    ranks = everyone if whole else data.draw(st.lists(st.sampled_from(everyone), min_size=2, unique=True))
    launch_s = max(cluster.device(rank).collective_launch_s for rank in ranks)
    costs = collective_costs(cluster, kind, ranks, num_bytes)
    assert costs
    for cost in costs:
        program = collective_program(cluster, kind, cost.algorithm, ranks, num_bytes, cost.num_pieces)
        seconds = _seconds(cluster, program)
        assert check_program(program) == []
        if cost.algorithm == "chain":
            # Its first and last rounds have fewer hops at work; the cost takes all rounds as full.
            assert seconds <= (cost.seconds - launch_s) * (1 + 1e-9) + 1e-15
        else:
            assert cost.seconds - launch_s == pytest.approx(seconds, rel=1e-9, abs=1e-12)
            of_nothing = replace(program, rounds=tuple(map(_of_nothing, program.rounds)))
            assert cost.moving_s == pytest.approx(
                seconds - _seconds(cluster, of_nothing), rel=1e-9, abs=1e-12
            )


def test_chain_cost_is_exact_on_a_switch() -> None:
    cluster = parse_cluster("8xA100-80G")
    for num_bytes in (1e3, 1e6, 1e9):
        cost = next(
            c for c in collective_costs(cluster, "broadcast", range(8), num_bytes) if c.algorithm == "chain"
        )
        program = collective_program(cluster, "broadcast", "chain", range(8), num_bytes, cost.num_pieces)
        assert cost.seconds - 20e-6 == pytest.approx(_seconds(cluster, program), rel=1e-9)


def test_counted_all_to_all_equals_the_listed_one() -> None:
    cluster = parse_cluster("16x8xA100-80G@4x200Gb")
    costs = collective_costs(cluster, "all_to_all", range(128), 1e8)
    assert costs
    for cost in costs:
        program = collective_program(cluster, "all_to_all", cost.algorithm, range(128), 1e8)
        assert cost.seconds - 20e-6 == pytest.approx(_seconds(cluster, program), rel=1e-9)


@pytest.mark.parametrize("kind", _GROUP_KINDS)
@pytest.mark.parametrize("shape", ["4x4xA100-80G@2x200Gb", "2x4xV100-32G"])
def test_groups_at_the_same_time_cost_what_their_programs_cost_together(kind: str, shape: str) -> None:
    cluster = parse_cluster(shape)
    size, per_node = cluster.num_devices, cluster.num_devices // cluster.num_nodes
    halves = tuple(tuple(r for r in range(size) if r % per_node // 2 == half) for half in range(2))
    across = tuple(tuple(range(place, size, per_node)) for place in range(per_node))
    for groups in (halves, across):
        costs = collective_costs(cluster, kind, groups[0], 1e7, groups)
        assert costs
        for cost in costs:
            programs = [
                collective_program(cluster, kind, cost.algorithm, g, 1e7, cost.num_pieces) for g in groups
            ]
            seconds = cost.seconds - cluster.device(0).collective_launch_s
            # The cost of a chain takes its first and last rounds as full.
            assert seconds == pytest.approx(
                _seconds(cluster, *programs), rel=0.3 if cost.algorithm == "chain" else 1e-9
            )


def test_ring_formula_on_a_switch() -> None:
    cluster = parse_cluster("8xA100-80G")
    link = cluster.links[0]
    step_s = 3.4e-6 + 1e9 / 8 / link.bandwidth_bytes_per_s
    costs = {cost.algorithm: cost for cost in collective_costs(cluster, "all_reduce", range(8), 1e9)}
    assert costs["ring"].seconds == pytest.approx(20e-6 + 14 * step_s)
    assert costs["halving_doubling"].seconds < costs["tree"].seconds
    assert collective_cost(cluster, "all_reduce", range(8), 1e9) == min(
        costs.values(), key=lambda c: c.seconds
    )


def test_hybrid_cube_mesh_gives_six_rings_on_all_links() -> None:
    network = Interconnect("net", 1e10, 1.0, 1e-6, "test")
    topology = cube_mesh_node(8, 4, network)
    rings = pack_rings(topology, tuple(range(8)))
    used: dict[tuple[int, int], float] = {}
    for order, share in rings:
        assert sorted(order) == list(range(8))
        for hop in zip(order, order[1:] + order[:1], strict=True):
            used[hop] = used.get(hop, 0.0) + share
    per_link = {hop: share / topology.direct_bandwidth[hop] for hop, share in used.items()}
    assert set(used) == set(topology.direct_bandwidth)
    assert max(per_link.values()) == pytest.approx(min(per_link.values()))
    assert sum(share for _, share in rings) == pytest.approx(1.0)


def test_rings_over_nodes_use_every_nic() -> None:
    layout = Layout((4, 4), (((0, 1, 2, 3), 1.0),))
    exits = {order[3] for order, _ in layout.rings()}
    assert exits == {0, 1, 2, 3}
    one_nic, four_nics = parse_cluster("2x8xA100-80G@200Gb"), parse_cluster("2x8xA100-80G@4x200Gb")
    slow, fast = (
        next(
            cost.seconds
            for cost in collective_costs(c, "all_reduce", range(16), 1e9)
            if cost.algorithm == "ring"
        )
        for c in (one_nic, four_nics)
    )
    assert slow / fast == pytest.approx(4.0, rel=0.05)


@settings(max_examples=40)
@given(
    kind=st.sampled_from(_GROUP_KINDS),
    size=st.integers(2, 16),
    num_bytes=st.floats(1.0, 1e10),
    factor=st.floats(1.0, 100.0),
)
def test_more_bytes_never_take_less_time(kind: str, size: int, num_bytes: float, factor: float) -> None:
    cluster = parse_cluster("2x8xV100-32G")
    few = collective_cost(cluster, kind, range(size), num_bytes).seconds
    assert collective_cost(cluster, kind, range(size), num_bytes * factor).seconds >= few * (1 - 1e-12)


def test_the_order_of_ranks_does_not_matter() -> None:
    cluster = parse_cluster("2x8xV100-32G")
    for kind in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all"):
        first = collective_cost(cluster, kind, (0, 1, 2, 3, 8, 9, 10, 11), 1e8)
        second = collective_cost(cluster, kind, (0, 9, 2, 11, 8, 1, 10, 3), 1e8)
        assert first == second


def test_large_groups_are_possible() -> None:
    cluster = parse_cluster("128x8xH100")
    for kind in _GROUP_KINDS:
        cost = collective_cost(cluster, kind, range(1024), 1e9)
        assert cost.seconds > 1e9 / 8 / 450e9


def test_one_rank_costs_nothing() -> None:
    cost = collective_cost(parse_cluster("8xA100-80G"), "all_reduce", (3,), 1e9)
    assert (cost.seconds, cost.algorithm) == (0.0, "none")


@pytest.mark.parametrize(
    ("kind", "ranks", "num_bytes", "words"),
    [
        ("all_reduc", (0, 1), 1.0, "all_reduce"),
        ("all_reduce", (0, 0), 1.0, "different"),
        ("all_reduce", (), 1.0, "one or more"),
        ("send", (0, 1, 2), 1.0, "two for a send"),
        ("all_reduce", (0, 8), 1.0, "0 to 7"),
        ("all_reduce", (0, -1), 1.0, "0 to 7"),
        ("all_reduce", (0, 1), -1.0, "zero or more"),
        ("all_reduce", (0, 1), float("nan"), "zero or more"),
    ],
)
def test_bad_input_says_what_is_allowed(
    kind: str, ranks: tuple[int, ...], num_bytes: float, words: str
) -> None:
    with pytest.raises(HardwareError, match=words):
        collective_cost(parse_cluster("8xA100-80G"), kind, ranks, num_bytes)


def test_unknown_algorithm_lists_those_of_the_group() -> None:
    with pytest.raises(HardwareError, match="halving_doubling, ring, tree"):
        collective_program(parse_cluster("8xA100-80G"), "all_reduce", "hierarchical", range(8), 1.0)


def test_measured_machine_uses_its_curves() -> None:
    points = [(count, size, t * (count - 1)) for count in (2, 4) for size, t in ((1e3, 1e-4), (1e6, 1e-3))]
    samples = (
        *(CollectiveSample("all_reduce", count, size, seconds) for count, size, seconds in points),
        CollectiveSample("send", 2, 1e3, 1e-5),
        CollectiveSample("send", 2, 1e7, 1e-2),
    )
    profile = MachineProfile(
        "cpu",
        4,
        2**30,
        "2",
        1e-6,
        (MatmulSample("float32", 1, 1e9, 0.01),),
        (MemorySample(1, 1e9, 0.1),),
        samples,
    )
    cluster = cluster_of_profile(profile, 8)
    cost = collective_cost(cluster, "all_reduce", (0, 1), 1e6)
    assert (cost.seconds, cost.algorithm) == (pytest.approx(1e-3), "measured")
    assert collective_cost(cluster, "all_reduce", (0, 1, 2), 1e6).seconds == pytest.approx(2e-3)
    assert collective_cost(cluster, "all_reduce", range(8), 1e6).seconds == pytest.approx(7e-3)
    # Four groups of two are eight processes on four cores: twice as slow as one group.
    groups = ((0, 1), (2, 3), (4, 5), (6, 7))
    assert collective_cost(cluster, "all_reduce", (0, 1), 1e6, groups).seconds == pytest.approx(2e-3)


def _measured_rows() -> list[dict[str, str]]:
    with require_data(DATA / "perf" / "vtrain" / "nccl_allreduce_single_node.csv").open() as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize(
    ("gpu", "spec", "tolerance"), [("a100", "8xA100-80G", 0.15), ("v100", "8xV100-32G", 0.17)]
)
def test_large_all_reduce_takes_what_nccl_took(gpu: str, spec: str, tolerance: float) -> None:
    cluster = parse_cluster(spec)
    rows = [row for row in _measured_rows() if row["gpu"] == gpu and int(row["bytes"]) >= 2**29]
    assert len({row["ranks"] for row in rows}) >= 3
    errors = []
    for row in rows:
        cost = collective_cost(cluster, "all_reduce", range(int(row["ranks"])), float(row["bytes"]))
        errors.append(cost.seconds * 1e6 / float(row["out_of_place_us"]) - 1)
    assert max(map(abs, errors)) < tolerance
