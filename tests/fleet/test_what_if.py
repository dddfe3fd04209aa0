"""What-ifs of a few jobs, whose times, kills and costs are computed by hand, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from runs import finished

import trainyard as ty
from trainyard.fleet.groups import num_not_done
from trainyard.fleet.prices import run_costs
from trainyard.fleet.records import FleetRun
from trainyard.fleet.span import Span
from trainyard.fleet.what_if import parse_what_if, parse_what_ifs
from trainyard.fleet.workload.job import Adaptive, Grant, Job, Rate, Spot, declared_job
from trainyard.hardware.cluster import Cluster
from trainyard.hardware.parse import cluster_from_yaml

THREE = [declared_job("a", 0.0, 2, 100.0), declared_job("b", 0.0, 2, 60.0), declared_job("c", 0.0, 2, 30.0)]


def run(jobs: list[Job], cluster: Any, what_if: str, policy: str = "fifo", **more: Any) -> FleetRun:
    """The run of a what-if."""
    found = ty.fleet.simulate(jobs, cluster, policy, what_if=[what_if], **more)
    assert not found.cannot_run
    return found[f"{policy}, {what_if}"]


def test_nodes_are_added_taken_away_and_swapped() -> None:
    found = ty.fleet.simulate(THREE, "1x2", what_if="+1x2; -1x2+2x2")
    assert [each.policy for each in found.runs] == ["fifo", "fifo, +1x2", "fifo, -1x2+2x2"]
    assert [each.what_if for each in found.runs] == ["", "+1x2", "-1x2+2x2"]
    present, more, swapped = found.runs
    assert finished(present) == {"a": 100.0, "b": 160.0, "c": 190.0}
    assert finished(more) == finished(swapped) == {"a": 100.0, "b": 60.0, "c": 90.0}
    assert finished(run(THREE, "2x2", "-1x2")) == finished(present)
    assert [row["num_devices"] for row in found.rows()] == [4, 4, 2]


def test_speeds_of_types_are_for_jobs_of_which_only_the_length_is_known() -> None:
    found = ty.fleet.simulate(THREE, "1x2xV100", what_if=["-1x2xV100+1x2xH100"], speeds={"h100": 2.0})
    assert finished(found.runs[0]) == {"a": 100.0, "b": 160.0, "c": 190.0}
    assert finished(found.runs[1]) == {"a": 50.0, "b": 80.0, "c": 95.0}
    pinned = [replace(job, device_types=(name,)) for job, name in zip(THREE, ("V100", "H100"), strict=False)]
    mixed = ty.fleet.simulate(pinned, "1x2xV100+1x2xH100", speeds={"H100": 2.0}).runs[0]
    assert finished(mixed) == {"a": 100.0, "b": 30.0}
    own = [replace(job, profile=ty.fleet.workload.speeds.Speeds((("H100", 2, 4.0),))) for job in THREE]
    assert finished(run(own, "1x2xH100", "limit=1h", speeds={"H100": 2.0})) == {
        "a": 25.0,
        "b": 40.0,
        "c": 47.5,
    }


def test_a_limit_ends_jobs_and_counts_them() -> None:
    found = run(THREE, "1x2", "limit=36s")
    assert finished(found) == {"a": 36.0, "b": 72.0, "c": 102.0}
    assert found.is_killed.tolist() == [True, True, False]
    assert (found.num_killed, found.times()["num_killed"], found.figures()["num_killed"]) == (2, 2, 2)
    assert found.device_s.tolist() == [72.0, 72.0, 60.0]
    assert found.slowdown.tolist() == [1.0, 2.0, 3.4]  # alone it would have been ended as soon
    assert num_not_done(found, ty.fleet.simulate(THREE, "1x2").runs[0]) == 2
    # Who ends jobs comes after those who let them come to their end, though it is sooner done.
    assert [row["what_if"] for row in ty.fleet.simulate(THREE, "1x2", what_if="limit=36s").rows()] == [
        "",
        "limit=36s",
    ]


def test_a_limit_is_of_all_time_with_devices_also_that_of_restarts() -> None:
    jobs = [
        declared_job("a", 0.0, 1, 100.0),
        declared_job("b", 0.0, 1, 10.0),
        declared_job("c", 5.0, 1, 50.0),
    ]
    found = run(jobs, "1x1", "limit=30s", "srtf")
    assert finished(found) == {"b": 10.0, "c": 40.0, "a": 70.0}
    late = [declared_job("long", 0.0, 1, 25.0), declared_job("short", 10.0, 1, 5.0)]
    # 10 s, then 5 s for the other, then 4 s to restart: 15 s of work would be left, and 20 s of the time are.
    slow = run(late, "1x1", "limit=30s", "srtf", costs=ty.fleet.Costs(4.0))
    assert (finished(slow)["long"], slow.num_killed) == (34.0, 0)
    cut = run(late, "1x1", "limit=28s", "srtf", costs=ty.fleet.Costs(4.0))
    assert (finished(cut)["long"], cut.num_killed) == (33.0, 1)


class Stepping(Adaptive):
    """One unit of work a second, and a new rate after every ten."""

    def rate(self, spot: Spot, grant: Grant, done: float, report: Any) -> Rate:
        return Rate(1.0, 10.0 * (done // 10.0 + 1.0), None)


def test_a_limit_ends_jobs_that_change_their_rate() -> None:
    found = run([Job("one", 0.0, 1, 100.0, Stepping())], "1x1", "limit=25s")
    assert (finished(found), found.num_killed) == ({"one": 25.0}, 1)
    assert run([Job("one", 0.0, 1, 20.0, Stepping())], "1x1", "limit=25s").num_killed == 0


def test_backfilling_sees_the_limit() -> None:
    jobs = [
        declared_job("first", 0.0, 3, 30.0),
        declared_job("wide", 1.0, 4, 10.0),
        declared_job("small", 2.0, 1, 50.0),
    ]
    policy = "fifo(backfill='easy')"
    # Without limits nobody knows that the first ends soon, and the small one delays nobody; with them it would.
    assert finished(ty.fleet.simulate(jobs, "1x4", policy).runs[0]) == {
        "first": 30.0,
        "small": 52.0,
        "wide": 62.0,
    }
    assert finished(run(jobs, "1x4", "limit=100s", policy)) == {"first": 30.0, "wide": 40.0, "small": 90.0}
    short = [replace(job, limit_s=60.0) for job in jobs]
    assert [job.limit_s for job in parse_what_if("limit=100s").jobs(short)] == [60.0] * 3


def test_priorities_by_size_are_for_policies_that_read_them() -> None:
    jobs = [
        declared_job("one", 0.0, 4, 1000.0),
        declared_job("two", 0.0, 4, 1000.0),
        declared_job("wide", 100.0, 8, 500.0),
    ]
    found = ty.fleet.simulate(jobs, "1x8", "hived,fifo", what_if=["priority=8:10,1-4:0"])
    assert finished(found["hived"])["wide"] == 1500.0
    assert finished(found["hived, priority=8:10,1-4:0"])["wide"] == 600.0
    (refused,) = found.cannot_run
    assert refused.text == "fifo, priority=8:10,1-4:0"
    assert refused.why.startswith("fifo does not read priorities")
    sizes = [replace(job, priority=3) for job in (*jobs, declared_job("other", 0.0, 5, 1.0))]
    assert [job.priority for job in parse_what_if("priority=8:10,1-4:0").jobs(sizes)] == [0, 0, 10, 3]


ACCOUNTS = [
    declared_job("a", 0.0, 2, 100.0, account="u"),
    declared_job("b", 0.0, 2, 60.0, account="u"),
    declared_job("c", 1.0, 1, 30.0, account="v"),
    declared_job("d", 1.0, 1, 10.0, account="u"),
    declared_job("e", 2.0, 3, 10.0, account="u"),
]


@pytest.mark.parametrize(
    ("policy", "what_if", "ends"),
    [
        ("fifo", "quota=*:3", {"a": 100.0, "b": 160.0, "c": 31.0, "d": 11.0, "e": 170.0}),
        ("fifo", "quota=u:2", {"a": 100.0, "b": 160.0, "c": 31.0, "d": 170.0}),
        ("srtf", "quota=*:3", {"a": 170.0, "b": 70.0, "c": 31.0, "d": 11.0, "e": 21.0}),
        ("sjf", "quota=u:2,v:1", {"a": 170.0, "b": 60.0, "c": 31.0, "d": 70.0}),
    ],
)
def test_accounts_have_no_more_devices_at_once_than_their_quota(
    policy: str, what_if: str, ends: dict[str, float]
) -> None:
    found = run(ACCOUNTS, "1x4", what_if, policy)
    assert finished(found) == ends
    too_large = "it asks for 3 devices; account 'u' may have 2 at once"
    assert found.refused == (() if "e" in ends else (("e", too_large),))


def test_quotas_are_for_policies_that_only_order_jobs() -> None:
    policies = ["fifo(backfill='easy')", "hived", "gandiva"]
    found = ty.fleet.simulate(ACCOUNTS, "1x4", ["fifo", *policies], what_if="quota=u:2")
    assert [each.text for each in found.cannot_run] == [f"{policy}, quota=u:2" for policy in policies]
    assert all("does more than put jobs in an order" in each.why for each in found.cannot_run)
    parts = cluster_from_yaml("cluster: 2x4\npartitions: {one: 0, two: 1}")
    (refused,) = ty.fleet.simulate(ACCOUNTS, parts, what_if="quota=u:2").cannot_run
    assert "has partitions" in refused.why


PRICED = cluster_from_yaml("cluster: 1x2xV100+1x2xA100\nprices: {V100: 3600, A100: 7200, H100: 36000}")
TYPED = [
    declared_job("a", 0.0, 2, 10.0, device_types=("V100",), user="ann"),
    declared_job("b", 0.0, 1, 5.0, device_types=("A100",), user="bob"),
]


def test_costs_are_those_of_the_devices_that_jobs_had_and_of_the_cluster() -> None:
    found = ty.fleet.simulate(TYPED, PRICED, what_if=["-1x2xA100", "+1x1xH100"])
    # Two V100 for 10 s at 1 a second and an A100 for 5 s at 2; all four devices for 10 s.
    assert found.runs[0].costs == {"used_cost": 30.0, "cluster_cost": 60.0}
    assert found.runs[1].costs == {"used_cost": 20.0, "cluster_cost": 20.0}
    assert found.runs[2].costs == {"used_cost": 30.0, "cluster_cost": 160.0}
    assert num_not_done(found.runs[1], found.runs[0]) == 1
    assert ty.fleet.simulate(TYPED, "1x2xV100+1x2xA100").runs[0].costs == {
        "used_cost": None,
        "cluster_cost": None,
    }


def test_a_device_that_jobs_share_costs_once() -> None:
    spans = [
        Span("a", 0.0, 10.0, (0, 2)),
        Span("b", 5.0, 15.0, (0,)),
        Span("c", 6.0, 8.0, (0,)),
        Span("d", 20.0, 21.0, (0,)),
    ]
    assert run_costs(PRICED, 21.0, 26.0, spans)["used_cost"] == 16.0 * 1 + 10.0 * 2
    assert run_costs(PRICED, 21.0, 26.0, [])["used_cost"] is None  # who had which is not known


PARTS = cluster_from_yaml(
    "cluster: 2x4xV100@8cpu+1x4xV100@8cpu+1x4xA100\n"
    "partitions: {gpu: 0-1, debug: 2, a100: 3}\n"
    "changes: [{at_s: 5, leave: '1,3'}, {at_s: 9, come: 1}]\n"
)


def test_nodes_that_stay_keep_their_partitions_and_when_they_come_and_go() -> None:
    less = parse_what_if("-1x4xV100:gpu +2x4xv100:debug,gpu").cluster(PARTS)
    assert dict(less.partitions) == {"gpu": {0, 3, 4}, "debug": {1, 3, 4}, "a100": {2}}
    assert [(change.at_s, change.nodes) for change in less.changes] == [(5.0, {2})]
    assert [node.cpus for node in less.nodes] == [8.0, 8.0, 0.0, 8.0, 8.0]  # as those with the same devices
    assert less.device_types == ("V100", "A100")
    other = parse_what_if("+1x4xV100@16cpu:gpu").cluster(PARTS)
    assert (other.nodes[-1].cpus, other.name) == (16.0, f"{PARTS.name} +1x4xV100@16cpu:gpu")


def test_added_racks_are_racks_of_their_own() -> None:
    nodes = parse_what_if("+2x2").cluster(ty.parse_cluster("2x2@2/rack")).nodes
    assert nodes[0].rack == nodes[1].rack != nodes[2].rack == nodes[3].rack


def test_each_what_if_counts_once() -> None:
    assert [each.text for each in parse_what_ifs(["limit=1h;  +1x2   limit=2h", "limit=1h"])] == [
        "limit=1h",
        "+1x2 limit=2h",
    ]


@pytest.mark.parametrize(
    ("what_if", "cluster", "said"),
    [
        ("", "1x2", "a what-if is empty; allowed are nodes such as"),
        ("faster", "1x2", "'faster' is no change; allowed are nodes such as"),
        ("speed=2", "1x2", "'speed=2' is no change"),
        ("+3", "1x2", "cannot be read at '3'; allowed: NODESxDEVICESxNAME"),
        ("-2x2", "1x2", "2 nodes of 2xdevice are to go, and cluster '1x2' has 1; its nodes are 2xdevice"),
        ("-1x2", "1x2", "leaves 0 devices"),
        ("+1000000x1", "1x2", "leaves 1,000,002 devices; allowed are at least one and at most 1,000,000"),
        ("+1x2:", "1x2", "names no partition after the colon; write for example \\+1x2:gpu"),
        ("+1x2:gpu", "1x2", "has no partition 'gpu'; it has no partitions"),
        ("+1x4xV100", PARTS, "say which they join: \\+1x4xV100:gpu, of gpu, debug, a100"),
        ("-1x4xV100", PARTS, "say from which they are taken: -1x4xV100:NAME, of gpu, debug, a100"),
        ("-1x4xV100:a100", PARTS, "are to go in partition a100, and cluster"),
        ("+1x2xK80", PRICED, "has prices, and none of K80; add it under prices"),
        ("limit=2", "1x2", "'2' is not a time; allowed is a number above 0 and one of"),
        ("limit=1000000h", "1x2", "limit is 1000000h; allowed is at most"),
        ("limit=1h limit=2h", "1x2", "says limit twice; keep one"),
        ("priority=2", "1x2", "'2' is not DEVICES:PRIORITY or FROM-TO:PRIORITY"),
        ("priority=4-2:1", "1x2", "'4-2:1' is not DEVICES:PRIORITY"),
        ("quota=u", "1x2", "'u' is not ACCOUNT:DEVICES with each account once"),
        ("quota=u:1,u:2", "1x2", "'u:2' is not ACCOUNT:DEVICES with each account once"),
        ("quota=w:2", "1x4", "no job is of account 'w', so that a quota changes nothing; accounts are u, v"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_by_name(what_if: str, cluster: str | Cluster, said: str) -> None:
    with pytest.raises(ty.fleet.FleetError, match=said):
        ty.fleet.simulate(ACCOUNTS, cluster, what_if=[what_if])


def test_links_that_are_described_node_by_node_are_of_these_nodes_only() -> None:
    cluster = ty.parse_cluster("2x2xV100")
    linked = replace(cluster, fabric=replace(cluster.fabric, name="two switches"))
    with pytest.raises(ty.fleet.FleetError, match="are described node by node"):
        ty.fleet.simulate(THREE, linked, what_if="+1x2xV100")


def test_other_arguments_are_refused_by_name() -> None:
    with pytest.raises(ty.WrongTypeError, match="what_if is of type int"):
        ty.fleet.simulate(THREE, "1x2", what_if=3)  # type: ignore[arg-type]
    with pytest.raises(
        ty.fleet.FleetError, match="speed of 'H100': no node has such devices; there are device"
    ):
        ty.fleet.simulate(THREE, "1x2", speeds={"H100": 2.0})
    with pytest.raises(ty.fleet.FleetError, match=r"speed of 'device' is 0\.0; give a number above 0"):
        ty.fleet.simulate(THREE, "1x2", speeds={"device": 0.0})
    with pytest.raises(ValueError, match="has prices, and none of A100; add it under prices"):
        cluster_from_yaml("cluster: 1x2xV100+1x2xA100\nprices: {V100: 1}")


def test_prices_are_kept_and_make_no_other_cluster() -> None:
    assert cluster_from_yaml(PRICED.to_yaml()) == PRICED
    assert PRICED.fingerprint() == ty.parse_cluster("1x2xV100+1x2xA100").fingerprint()
