"""Clusters: text form, routes, YAML, errors."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from trainyard.hardware import (
    DEVICES,
    NETWORK,
    Cluster,
    Edge,
    Fabric,
    HardwareError,
    Link,
    Node,
    NodeTopology,
    device_named,
    parse_cluster,
)
from trainyard.hardware.parse import cluster_from_yaml


def _names(cluster: Cluster, source: int, target: int) -> list[str]:
    return [cluster.links[link].name for link in cluster.route(source, target)]


_PARTS = st.builds(
    lambda nodes, devices, name, network: f"{nodes}x{devices}x{name}{network}",
    st.integers(1, 4),
    st.integers(1, 8),
    st.sampled_from(sorted(DEVICES)),
    st.sampled_from(["", "@100Gb", "@2x25Gb", "@10Gb"]),
)


@settings(max_examples=40)
@given(parts=st.lists(_PARTS, min_size=1, max_size=3))
def test_text_form_yaml_and_pickle_agree(parts: list[str]) -> None:
    cluster = parse_cluster("+".join(parts))
    counts = [[int(number) for number in part.split("x")[:2]] for part in parts]
    assert cluster.num_nodes == sum(nodes for nodes, _ in counts)
    assert cluster.num_devices == sum(nodes * devices for nodes, devices in counts)
    assert len(cluster.node_of) == len(cluster.local_of) == cluster.num_devices
    again = cluster_from_yaml(cluster.to_yaml())
    assert again == cluster
    assert again.fingerprint() == cluster.fingerprint()
    assert hash(again) == hash(cluster)
    assert pickle.loads(pickle.dumps(cluster)) == cluster
    assert str(cluster.num_devices) in cluster.describe()


@settings(max_examples=40)
@given(part=_PARTS, other=_PARTS, data=st.data())
def test_routes_are_paths_of_the_graph(part: str, other: str, data: st.DataObject) -> None:
    cluster = parse_cluster(f"{part}+{other}")
    rank = st.integers(0, cluster.num_devices - 1)
    source, target = data.draw(rank), data.draw(rank)
    route = cluster.route(source, target)
    assert bool(route) == (source != target)
    assert len(set(route)) == len(route)
    names = _names(cluster, source, target)
    crosses = cluster.node_of[source] != cluster.node_of[target]
    assert (
        sum("->network" in name for name in names)
        == sum("network->" in name for name in names)
        == int(crosses)
    )


def test_routes_of_known_machines() -> None:
    a100 = parse_cluster("2x8xA100-80G")
    assert _names(a100, 0, 5) == ["gpu0->switch NVLink3", "switch->gpu5 NVLink3"]
    assert _names(a100, 1, 12) == ["nic1->network InfiniBand-200Gb", "network->nic4 InfiniBand-200Gb"]
    one_nic = parse_cluster("2x8xA100-80G@100Gb")
    assert _names(one_nic, 1, 2) == ["gpu1->switch NVLink3", "switch->gpu2 NVLink3"]
    assert one_nic.route(0, 8) == one_nic.route(7, 15)
    v100 = parse_cluster("8xV100-32G")
    assert _names(v100, 0, 3) == ["gpu0->gpu3 NVLink2"]
    assert len(_names(v100, 0, 5)) == 2
    k80 = parse_cluster("8xK80")
    assert "root0->root1 QPI" in _names(k80, 0, 7)
    assert _names(k80, 0, 1) == ["gpu0->pcie0 PCIe3", "pcie0->gpu1 PCIe3"]


def test_heterogeneous_cluster() -> None:
    cluster = parse_cluster("2x8xA100-80G+1x4xT4")
    assert [cluster.device(rank).name for rank in (0, 15, 16, 19)] == ["A100-80G", "A100-80G", "T4", "T4"]
    assert len(set(cluster.nodes)) > 1
    assert cluster.num_cores is None
    assert len(set(parse_cluster("16x8xA100-80G").nodes)) == 1


def test_fingerprint_ignores_the_name_only() -> None:
    assert parse_cluster("8xH100").fingerprint() == parse_cluster("1x8xH100").fingerprint()
    assert parse_cluster("8xH100").fingerprint() != parse_cluster("8xH200").fingerprint()
    assert parse_cluster("2x8xH100").fingerprint() != parse_cluster("2x8xH100@100Gb").fingerprint()


def test_yaml_file_with_presets_and_a_fabric(tmp_path: Path) -> None:
    link = "{name: wire, bandwidth_bytes_per_s: 1.0e9, latency_s: 1.0e-6}"
    path = tmp_path / "odd.yaml"
    path.write_text(f"""
name: odd
devices: [T4, K80]
topologies:
  - {{name: pair, num_devices: 2, links: [{link}], edges: [[gpu0, bus, 0], [bus, gpu0, -1],
     [gpu1, bus, 0], [bus, gpu1, -1], [bus, network, -1], [network, bus, -1]]}}
nodes: [{{topology: 0, devices: [0, 1], count: 3}}]
fabric: {{name: line, links: [{link}, {link}], edges: [[node0, node1, 0], [node1, node0, 0],
  [node1, node2, 1], [node2, node1, 1]]}}
""")
    cluster = parse_cluster(path)
    assert [device.name for device in cluster.devices] == ["T4", "K80"] * 3
    assert cluster.route(0, 5) == (0, 3, 4)
    assert cluster.route(4, 3) == (2, 4)
    assert cluster_from_yaml(cluster.to_yaml()) == cluster
    plain = yaml.safe_load(cluster.to_yaml())
    plain["devices"][0]["memory_bandwidth_bytes_per_s"] = "3.2e11"  # as YAML reads a number without a sign
    assert cluster_from_yaml(yaml.safe_dump(plain)) == cluster
    short = tmp_path / "short.yaml"
    short.write_text("cluster: 4x8xV100-32G@100Gb\n")
    assert parse_cluster(str(short)) == parse_cluster("4x8xV100-32G@100Gb")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "NODESxDEVICESxNAME"),
        ("A100-80G", "NODESxDEVICESxNAME"),
        ("0x8xA100-80G", "at least 1 x 1"),
        ("8x0xA100-80G", "at least 1 x 1"),
        ("1000000x8xA100-80G", "at most"),
        ("8xH100@fast", "100Gb"),
        ("8xH100@0Gb", "more than zero"),
        ("8xH100@0x100Gb", "at least one"),
        ("2x8xH100+", "kinds of nodes joined by"),
        ("missing.yaml", "does not exist"),
        ("local:0", "1 or more"),
    ],
)
def test_bad_text_says_what_is_allowed(text: str, words: str) -> None:
    with pytest.raises(HardwareError, match=words) as error:
        parse_cluster(text)
    assert isinstance(error.value, ValueError)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[1, 2]", r"a cluster holds \[1, 2\]; allowed: a mapping with devices, topologies and nodes"),
        ("nodes: 3", "field 'devices' is missing"),
        ("a: [", "line 2: not YAML"),
        (
            "{devices: [T4], topologies: [], nodes: [{topology: 0, devices: [0]}]}",
            r"'topologies': got \[\], allowed is a list with at least one",
        ),
    ],
)
def test_bad_yaml_is_refused(text: str, why: str) -> None:
    with pytest.raises(HardwareError, match=why):
        cluster_from_yaml(text)


def test_bad_structures_are_refused() -> None:
    wire = Link("wire", 1e9, 0.0)
    device = device_named("T4")
    alone = NodeTopology("alone", 1, (), ())
    with pytest.raises(HardwareError, match="no network"):
        Cluster("x", (Node(alone, (device,)),) * 2)
    with pytest.raises(HardwareError, match="places"):
        Node(alone, (device, device))
    with pytest.raises(HardwareError, match="no devices"):
        Cluster("x", ())
    with pytest.raises(HardwareError, match="crosses link 1"):
        NodeTopology("n", 1, (wire,), (Edge("gpu0", NETWORK, 1),))
    with pytest.raises(HardwareError, match="no path"):
        Cluster("x", (Node(NodeTopology("split", 2, (), ()), (device, device)),)).route(0, 1)
    with pytest.raises(HardwareError, match="more than zero"):
        Link("broken", 0.0, 0.0)
    node = parse_cluster("1x2xT4").nodes[0]
    with pytest.raises(HardwareError, match="no path"):
        Cluster("x", (node, node), Fabric("half", (wire,), (Edge("node0", "node1", 0),)))
    with pytest.raises(HardwareError, match="0 to 7"):
        parse_cluster("8xH100").route(0, 8)
    with pytest.raises(HardwareError, match="0 to 7"):
        parse_cluster("8xH100").device(-1)
