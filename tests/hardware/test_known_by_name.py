"""Clusters of which not all is known: jobs share them, and whatever asks how fast devices are refuses them by name."""

from __future__ import annotations

from pathlib import Path

import pytest

import trainyard as ty
from trainyard.cli.main import main
from trainyard.fleet.errors import FleetError
from trainyard.fleet.scheduler import scheduler_of
from trainyard.fleet.workload.job import declared_job
from trainyard.hardware import (
    Cluster,
    DeviceSpec,
    HardwareError,
    NamedDevice,
    Node,
    device_named,
    parse_cluster,
)
from trainyard.hardware.parse import cluster_from_yaml

MIXED = "2x8xV100@96cpu,1440GiB,2/rack+3x4xA100-80G@2x100Gb,64cpu,1/rack"


def test_nodes_say_what_their_hosts_have() -> None:
    cluster = parse_cluster(MIXED)
    assert [(n.device_type, n.num_devices, n.cpus, n.memory_bytes, n.rack) for n in cluster.nodes] == [
        ("V100", 8, 96.0, 1440 * 2.0**30, "rack 0.0"),
        ("V100", 8, 96.0, 1440 * 2.0**30, "rack 0.0"),
        ("A100-80G", 4, 64.0, 0.0, "rack 1.0"),
        ("A100-80G", 4, 64.0, 0.0, "rack 1.1"),
        ("A100-80G", 4, 64.0, 0.0, "rack 1.2"),
    ]
    assert isinstance(cluster.nodes[0].devices[0], NamedDevice)
    assert isinstance(cluster.nodes[2].devices[0], DeviceSpec)
    assert cluster.device_types == ("V100", "A100-80G")


@pytest.mark.parametrize(
    "text", [MIXED, "16x4", "2x512xH100@24cpu", "cluster: 3x2xT4\npartitions: {a: 0-1, b: '0,2'}\n"]
)
def test_all_of_it_is_read_back(text: str, tmp_path: Path) -> None:
    if "\n" in text:
        (tmp_path / "c.yaml").write_text(text)
        text = str(tmp_path / "c.yaml")
    cluster = parse_cluster(text)
    again = cluster_from_yaml(cluster.to_yaml())
    assert (again, again.fingerprint(), again.partitions) == (
        cluster,
        cluster.fingerprint(),
        cluster.partitions,
    )
    assert str(cluster.num_devices) in cluster.describe()


def test_partitions_and_hosts_tell_clusters_apart() -> None:
    texts = ("2x4xT4", "2x4xT4@8cpu", "2x4xT4@8GB", "2x4xT4@1/rack")
    assert len({parse_cluster(text).fingerprint() for text in texts}) == len(texts)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "2x8xV100",
            "unknown device 'V100'; known: A100-40G, A100-80G.* YAML",
        ),
        ("1x2xT4+1x2", "the cluster names no device type; name one, .*A100-40G"),
        (
            "1x512xH100",
            "512 devices, and links are known between at most 256; a larger machine is several nodes",
        ),
    ],
)
def test_what_asks_for_speed_refuses_them(text: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    cluster = parse_cluster(text)
    for ask in (lambda: cluster.devices, lambda: cluster.routes, lambda: cluster.links):
        with pytest.raises(HardwareError, match=said):
            ask()
    with pytest.raises(HardwareError, match=said):
        ty.plan(ty.load_model("gpt-tiny", 8), cluster, "data_parallel")
    assert main(["plan", "gpt-tiny", "--cluster", text]) == 2
    told = capsys.readouterr().err
    assert "Traceback" not in told
    assert told.startswith("error: ")
    jobs = [declared_job("a", 0.0, 2, 10.0)]
    assert scheduler_of("fifo").simulate(jobs, cluster).finish_s.tolist() == [10.0]


def test_nothing_is_planned_for_nodes_that_are_away() -> None:
    with pytest.raises(HardwareError, match=r"node 1 .* has no devices that can be used now"):
        ty.plan(ty.load_model("gpt-tiny", 8), parse_cluster("2x2xT4").without({1}), "data_parallel")


def test_hosts_do_not_change_a_step() -> None:
    model = ty.load_model("gpt-tiny", 8)
    steps_s = {
        ty.plan(model, text, "data_parallel").simulation.step_s
        for text in ("2x2xT4", "2x2xT4@8cpu,64GB,1/rack")
    }
    assert len(steps_s) == 1


def test_a_network_of_unknown_devices_is_refused() -> None:
    with pytest.raises(
        HardwareError, match=r"'V100' at '2x8xV100@100Gb' only the name is known.* leave it out"
    ):
        parse_cluster("2x8xV100@100Gb")


def test_nodes_of_several_types_take_no_jobs() -> None:
    devices = (device_named("T4"), device_named("L4"))
    cluster = Cluster("mixed", (Node(None, devices),))
    with pytest.raises((FleetError, HardwareError), match="several types, T4, L4"):
        scheduler_of("fifo").simulate([declared_job("a", 0.0, 1, 10.0)], cluster)


def test_cluster_reads_what_else_nodes_have() -> None:
    cluster = parse_cluster("3x8xV100@24cpu,500GB,2/rack+1x4@1.5cpu")
    assert [(h.cpus, h.memory_bytes) for h in cluster.nodes] == [(24.0, 5e11)] * 3 + [(1.5, 0.0)]
    assert parse_cluster("1x4@60GiB,4cpu").nodes[0].memory_bytes == 60 * 2**30
    assert cluster.rack_of_node.tolist() == [0, 0, 1, 2]
    assert parse_cluster("3x8xV100").rack_of_node.tolist() == [0, 0, 0]
    for twice in ("4x4@24cpu,24cpu", "4x4@8GB,4/rack,9.5GB", "4x4@8GB,8GiB"):
        with pytest.raises(HardwareError, match="says something twice"):
            parse_cluster(twice)
    with pytest.raises(HardwareError, match="'24cores' is none of 100Gb, 4x100Gb, 24cpu"):
        parse_cluster("3x8xV100@24cores")
    with pytest.raises(HardwareError, match="'' is none of"):
        parse_cluster("3x8@")


def test_devices_are_called_as_they_are_written() -> None:
    """Jobs of a trace ask for `k80`, and level 1 knows which that are."""
    cluster = parse_cluster("1x2xk80")
    assert cluster.device_types == ("k80",)
    assert cluster.devices[0].memory_bytes == device_named("K80").memory_bytes


def test_a_file_of_devices_known_by_name_needs_no_topologies() -> None:
    text = "devices: [{name: one}, {name: other}]\nnodes: [{devices: [0, 0], count: 2}, {devices: [1]}]\n"
    cluster = cluster_from_yaml(text)
    assert (cluster.device_types, cluster.devices_per_node.tolist()) == (("one", "other"), [2, 2, 1])
    with pytest.raises(
        HardwareError, match=r"'topologies' is missing; allowed is .* for nodes that have links"
    ):
        cluster_from_yaml("devices: [T4]\nnodes: [{devices: [0]}]\n")


def test_devices_of_nodes_that_are_away_are_of_no_type() -> None:
    cluster = parse_cluster("1x2xA+1x1xB+1x2xC")
    assert cluster.kind_of_device == (0, 0, 1, 2, 2)
    assert cluster.without([1]).kind_of_device == (0, 0, -1, 2, 2)
