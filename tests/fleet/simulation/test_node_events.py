"""Nodes that come and go as the cluster says: added, lent, taken out for maintenance, lost."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from leases import Lending
from runs import finished

from trainyard.cli.main import main
from trainyard.fleet.errors import FleetError
from trainyard.fleet.mechanism.costs import Costs
from trainyard.fleet.mechanism.hazards import Hazards
from trainyard.fleet.run.drive import Driver
from trainyard.fleet.run.local import LocalBackend
from trainyard.fleet.scheduler import scheduler_of
from trainyard.fleet.simulate import simulate_fleet
from trainyard.fleet.workload.job import declared_job
from trainyard.hardware.cluster import Cluster
from trainyard.hardware.errors import HardwareError
from trainyard.hardware.node_changes import NodeChange
from trainyard.hardware.parse import cluster_from_yaml, parse_cluster

WIDE = declared_job("wide", 0.0, 4, 100.0)


def changing(*changes: tuple[float, str, int]) -> Cluster:
    """Two nodes of two devices, of which some come and go."""
    text = "\n".join(f"- {{at_s: {at_s}, {what}: {node}}}" for at_s, what, node in changes)
    return cluster_from_yaml(f"cluster: 2x2xlocal\nchanges:\n{text}\n")


@pytest.mark.parametrize(
    ("changes", "end_s"),
    [
        # Half of the work is done, and kept; 30 s later the rest begins.
        (((50, "leave", 1), (80, "come", 1)), 130.0),
        # The last checkpoint is of 40 s.
        (((50, "lost", 1), (80, "come", 1)), 140.0),
        # A node that comes was not there before.
        (((10, "come", 0),), 110.0),
        # It is away for as long as any of two says so, and of one moment, it goes and is back.
        (((20, "leave", 0), (20, "come", 0)), 100.0),
        (((200, "leave", 0),), 100.0),
    ],
)
def test_a_job_goes_on_when_all_nodes_are_there(
    changes: tuple[tuple[float, str, int], ...], end_s: float
) -> None:
    hazards = Hazards(checkpoint_every_s=20.0)
    done = scheduler_of("fifo").simulate([WIDE], changing(*changes), hazards=hazards)
    assert finished(done) == {"wide": end_s}


def test_a_restart_costs_what_it_costs() -> None:
    cluster = changing((50, "leave", 1), (80, "come", 1))
    done = scheduler_of("fifo").simulate([WIDE], cluster, costs=Costs(restart_s=7.0))
    assert finished(done) == {"wide": 137.0}


def test_small_jobs_use_what_is_left() -> None:
    jobs = [declared_job(name, 0.0, 2, 100.0) for name in "ab"]
    done = scheduler_of("fifo").simulate(jobs, changing((50, "leave", 1)), keep_spans=True)
    assert finished(done) == {"a": 100, "b": 150}
    assert [span.devices for span in done.spans if span.start_s >= 50] == [(0, 1)]


def test_who_waits_for_what_never_comes_back_is_told() -> None:
    with pytest.raises(FleetError, match="leaves 1 jobs waiting for ever"):
        scheduler_of("fifo").simulate([WIDE], changing((50, "leave", 1)))


WAITING = pytest.mark.parametrize("policy", ["las", "gandiva", "optimus", "sia", "gavel_makespan"])


@WAITING
@pytest.mark.parametrize("every_s", [float("inf"), 1e9])
def test_no_policy_waits_for_ever_for_all_nodes(policy: str, every_s: float) -> None:
    """Neither one that asks again and again, nor one in rounds while nodes that are not there fail and are repaired."""
    hazards = Hazards(node_failure_every_s=every_s, node_repair_s=10.0)
    with pytest.raises(FleetError, match="leaves 1 jobs waiting for ever"):
        scheduler_of(policy).simulate([WIDE], changing((50, "leave", 0), (50, "leave", 1)), hazards=hazards)


@WAITING
def test_no_policy_waits_for_ever_for_one_node(policy: str) -> None:
    with pytest.raises(FleetError, match="leaves 1 jobs waiting for ever"):
        scheduler_of(policy).simulate([WIDE], changing((50, "leave", 1)))


@pytest.mark.parametrize("policy", ["sia", "elasticflow", "hived", "gavel_makespan"])
@pytest.mark.parametrize("nodes", [(0,), (0, 1)])
def test_a_policy_starts_with_all_nodes_in_mind(policy: str, nodes: tuple[int, ...]) -> None:
    """Also where some are not there before they come."""
    cluster = changing(*((30, "come", node) for node in nodes))
    done = scheduler_of(policy).simulate([WIDE], cluster)
    assert list(done.names) == ["wide"]
    assert done.first_start_s.min() >= 30.0


def test_failures_are_drawn_as_without() -> None:
    """A node fails while it is lent, too, and is not back before it is repaired."""
    hazards = Hazards(node_failure_every_s=300.0, node_repair_s=50.0, seed=3)
    jobs = [declared_job(str(n), 40.0 * n, 1 + n % 4, 90.0) for n in range(12)]
    plain = scheduler_of("fifo").simulate(jobs, Cluster.uniform(2, 2), hazards=hazards)
    much_later = replace(
        Cluster.uniform(2, 2),
        changes=(NodeChange(float(plain.finish_s.max()) + 1.0, "leave", frozenset({0})),),
    )
    again = scheduler_of("fifo").simulate(jobs, much_later, hazards=hazards)
    assert finished(again) == finished(plain)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{at_s: 5, leave: 2}", "line 3.*got 2, allowed is nodes such as 0-7,9, from 0 to 1"),
        ("{at_s: -1, leave: 1}", "at_s.*got -1, allowed is a number from 0"),
        ("{at_s: 5}", "one of come, leave and lost"),
        ("{at_s: 5, leave: 0, come: 1}", "one of come, leave and lost"),
        ("{at_s: 5, drop: 1}", "drop"),
        ("{leave: 1}", "at_s.* missing"),
    ],
)
def test_what_cannot_be_read(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(f"cluster: 2x2\nchanges:\n- {text}\n")
    with pytest.raises(HardwareError, match=said):
        parse_cluster(tmp_path / "c.yaml")


def test_changes_are_read_back() -> None:
    cluster = changing((80, "come", 1), (50, "leave", 1))
    assert [change.at_s for change in cluster.changes] == [50.0, 80.0]
    assert cluster_from_yaml(cluster.to_yaml()).changes == cluster.changes


@pytest.mark.parametrize("preempts", [False, True])
def test_leases_end_beside_nodes_that_come_and_go(preempts: bool) -> None:
    """What was lent on a node that leaves is not taken back once more, and is lent again where there is room."""
    jobs = [declared_job(str(n), 10.0 * n, 1 + n % 2, 100.0) for n in range(6)]
    cluster = changing((35, "leave", 1), (90, "come", 1), (130, "lost", 0), (130.5, "come", 0))
    hazards = Hazards(checkpoint_every_s=10.0)
    done = simulate_fleet(jobs, cluster, Lending(30.0, preempts), hazards=hazards, keep_spans=True)
    assert sorted(done.names) == sorted(job.name for job in jobs)
    away = {1: (35.0, 90.0), 0: (130.0, 130.5)}
    for span in done.spans:
        for node, (from_s, until_s) in away.items():
            is_there = span.end_s <= from_s or span.start_s >= until_s
            assert is_there or node not in {device // 2 for device in span.devices}, span
    for device in range(4):
        own = sorted((s.start_s, s.end_s) for s in done.spans if device in s.devices)
        assert all(end_s <= start_s for (_, end_s), (start_s, _) in pairwise(own))
    worked_s = sum((s.end_s - s.start_s) * len(s.devices) for s in done.spans)
    lost_s = float(done.lost_device_s.sum())
    assert worked_s - lost_s == pytest.approx(sum(job.work * job.num_devices for job in jobs))


def test_nobody_says_when_real_nodes_come_and_go(tmp_path: Path) -> None:
    cluster = changing((50, "leave", 1))
    scheduler = scheduler_of("fifo")
    with pytest.raises(FleetError, match="come and go in simulation only"):
        Driver(cluster, scheduler.policy, LocalBackend(cluster, tmp_path), rounds=scheduler.rounds)


def test_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "c.yaml").write_text(
        "cluster: 2x2\nchanges:\n- {at_s: 50, leave: 1}\n- {at_s: 80, come: 1}\n"
    )
    (tmp_path / "jobs.csv").write_text("name,arrival_s,num_devices,length_s\nwide,0,4,100\n")
    options = [
        "--trace",
        str(tmp_path / "jobs.csv"),
        "--cluster",
        str(tmp_path / "c.yaml"),
        "--policy",
        "fifo",
    ]
    assert main(["fleet", "simulate", *options]) == 0
    assert "2.2 min" in capsys.readouterr().out
