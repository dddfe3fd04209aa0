"""Clusters from files, and jobs that have nodes of their partition only."""

from __future__ import annotations

from pathlib import Path

import pytest
from runs import finished

from trainyard.cli.main import main
from trainyard.fleet.errors import FleetError
from trainyard.fleet.scheduler import scheduler_of
from trainyard.fleet.workload.job import Job, declared_job
from trainyard.hardware.cluster import Cluster
from trainyard.hardware.errors import HardwareError
from trainyard.hardware.parse import parse_cluster

TEXT = """\
cluster: 2x2xV100+1x4xA100@24cpu
partitions:
  gpu: 0-1
  a100: 2
  debug: 0,2
"""


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    (tmp_path / "cluster.yaml").write_text(TEXT)
    return parse_cluster(str(tmp_path / "cluster.yaml"))


def of(name: str, partition: str, arrival_s: float, size: int, length_s: float = 100.0) -> Job:
    return declared_job(name, arrival_s, size, length_s, virtual_cluster=partition)


def test_nodes_are_numbered_through_the_line_and_may_be_in_several(cluster: Cluster) -> None:
    assert [host.device_type for host in cluster.nodes] == ["V100", "V100", "A100"]
    assert dict(cluster.partitions) == {"gpu": {0, 1}, "a100": {2}, "debug": {0, 2}}
    assert cluster.members.tolist() == [[1, 1, 1], [1, 1, 0], [0, 0, 1], [1, 0, 1]]
    assert cluster.without({0}).partitions == cluster.partitions
    assert parse_cluster("2x2") == parse_cluster("2x2")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "cluster: 2x2\npartitions: {a: 0-2}\n",
            r"line 2.*got '0-2', allowed is nodes such as 0-7,9, from 0 to 1",
        ),
        ("cluster: 2x2\npartitions: {a: 1-0}\n", "nodes such as"),
        ("cluster: 2x2\npartitions: {a: x}\n", "nodes such as"),
        ("cluster: 2x2\npartition: {a: 0}\n", "partition"),
        ("cluster: 2x2\npartitions: [0]\n", "partitions"),
        ("partitions: {a: 0}\n", "devices.* is missing; allowed is a list"),
        ("cluster: two\n", "cannot be read at 'two'; allowed: NODESxDEVICES"),
        ("- 2x2\n", "a mapping with devices, topologies and nodes, or with `cluster: 16x8xA100-80G`"),
    ],
)
def test_what_cannot_be_read(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "c.yml").write_text(text)
    with pytest.raises(HardwareError, match=said):
        parse_cluster(str(tmp_path / "c.yml"))


def test_every_partition_has_a_queue(cluster: Cluster) -> None:
    """Jobs of one do not wait behind those of another, unless they could have the same nodes."""
    jobs = [
        of("a", "gpu", 0, 4),
        of("b", "gpu", 1, 4),
        of("c", "a100", 2, 4, 10.0),
        of("d", "gpu", 3, 1, 10.0),
        of("e", "debug", 4, 2, 10.0),
    ]
    # e could have node 0, for which b waits, or node 2: there it finds a place when c ends.
    each = scheduler_of("fifo").simulate(jobs, cluster)
    assert finished(each) == {"a": 100, "b": 200, "c": 12, "d": 210, "e": 22}
    assert each.queues == "one per device type and partition"
    one = scheduler_of("fifo(one_queue=True)").simulate(jobs, cluster)
    assert finished(one) == {"a": 100, "b": 200, "c": 110, "d": 210, "e": 210}
    assert one.queues == "one"
    whole = scheduler_of("fifo").simulate(jobs, parse_cluster("2x2xV100+1x4xA100"))
    assert finished(whole) == {"a": 100, "b": 101, "c": 110, "d": 111, "e": 111}


def test_a_more_urgent_job_takes_nodes_of_its_partition_only(cluster: Cluster) -> None:
    jobs = [
        of("long", "gpu", 0, 2, 1000.0),
        of("other", "a100", 0, 4, 2000.0),
        of("short", "debug", 10, 2, 10.0),
    ]
    done = scheduler_of("srtf").simulate([*jobs, of("wide", "gpu", 12, 2, 500.0)], cluster, keep_spans=True)
    # Of nodes 0 and 2, the least urgent job has the latter; wide finds node 1 free.
    assert finished(done) == {"short": 20, "wide": 512, "long": 1000, "other": 2010}
    assert {span.job: span.devices for span in done.spans if span.job == "wide"} == {"wide": (2, 3)}


def test_easy_backfilling_keeps_places_by_partition(cluster: Cluster) -> None:
    jobs = [
        declared_job(name, arrival_s, size, length_s, virtual_cluster=partition, limit_s=length_s)
        for name, partition, arrival_s, size, length_s in (
            ("a", "gpu", 0.0, 3, 100.0),
            ("first", "gpu", 1.0, 4, 100.0),
            ("late", "gpu", 2.0, 1, 150.0),
            ("elsewhere", "a100", 3.0, 4, 150.0),
            ("soon", "gpu", 4.0, 1, 50.0),
        )
    ]
    done = finished(scheduler_of('fifo(backfill="easy")').simulate(jobs, cluster))
    assert done == {"a": 100, "soon": 54, "elsewhere": 153, "first": 200, "late": 350}


def test_who_cannot_be_there(cluster: Cluster) -> None:
    jobs = [of("a", "gpu", 0, 4), of("wide", "a100", 0, 5), of("lost", "other", 0, 1), of("none", "", 0, 4)]
    done = scheduler_of("fifo").simulate(jobs, cluster)
    assert set(done.names) == {"a", "none"}
    with pytest.raises(FleetError, match="job 'wide' asks for 5 devices"):
        scheduler_of("fifo").simulate(jobs[1:2], cluster, strict=True)
    with pytest.raises(FleetError, match=r"'lost' is of partition 'other'.* has gpu, a100, debug"):
        scheduler_of("fifo").simulate(jobs[2:3], cluster, strict=True)
    with pytest.raises(
        FleetError, match="has partitions; leave these out, or take a policy that puts jobs in an order"
    ):
        scheduler_of("gavel_max_min").simulate(jobs, cluster)


def test_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "cluster.yaml").write_text(TEXT)
    (tmp_path / "jobs.csv").write_text(
        "name,arrival_s,num_devices,length_s,virtual_cluster\na,0,4,60,gpu\nb,0,4,60,a100\n"
    )
    options = [
        "--trace",
        str(tmp_path / "jobs.csv"),
        "--cluster",
        str(tmp_path / "cluster.yaml"),
        "--policy",
        "fifo",
    ]
    assert main(["fleet", "simulate", *options]) == 0
    said = capsys.readouterr().out
    assert "2x2xV100+1x4xA100@24cpu: 2 jobs, 8 devices" in said
    assert "one per device type and partition" in said
