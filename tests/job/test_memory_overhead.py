"""One account of memory: what a plan may use of a device, and what it holds there beside tensors."""

from __future__ import annotations

from dataclasses import replace

import pytest
from captured import tiny
from small_models import wide

from trainyard.cost.overhead import OVERHEAD_KINDS
from trainyard.hardware.cluster import Cluster
from trainyard.hardware.parse import parse_cluster
from trainyard.hardware.presets import DEVICES
from trainyard.job.auto.overhead import overhead_bytes
from trainyard.job.auto.space import Point, Sharding
from trainyard.job.catalog import parse_strategies
from trainyard.job.lower.lower import Lowered, lower
from trainyard.job.plan import DoesNotFitError
from trainyard.job.planning import make_setting, plan
from trainyard.job.setting import apply
from trainyard.job.simulate import simulate_plan
from trainyard.job.simulation.memory import MEMORY_KINDS
from trainyard.job.simulation.overhead import communicators
from trainyard.job.task import Task
from trainyard.program.model import Model

MIB = 2**20
EIGHT = "1x8xA100-80G"


def planned(model: Model, strategies: str, cluster: Cluster) -> Lowered:
    setting = make_setting(Task(model), cluster)
    chosen = apply(parse_strategies(strategies), setting)
    return lower(setting.task.program(chosen.rows_per_microbatch), chosen)


def with_memory(cluster: Cluster, usable_bytes: int) -> Cluster:
    """The same devices with so much memory beside what the driver keeps."""
    nodes = []
    for node in cluster.nodes:
        devices = (replace(d, memory_bytes=usable_bytes + d.overhead.driver_bytes) for d in node.devices)
        nodes.append(replace(node, devices=tuple(devices)))
    return Cluster("small", tuple(nodes))


@pytest.fixture(scope="module")
def eight() -> Lowered:
    """Pipeline 2 x data 2 x tensor 2 on eight A100."""
    return planned(tiny("gpt", 16), "megatron(tensor=2, pipeline=2, data=2)", parse_cluster(EIGHT))


def test_eight_ranks_by_hand(eight: Lowered) -> None:
    # Rank 5 is pipeline 1, data 0, tensor 1.
    found = communicators(eight, 5)
    assert {c.kinds for c in found if "send" not in c.kinds} == {frozenset({"all_reduce"})}
    assert sorted(c.ranks for c in found if "send" not in c.kinds) == [
        tuple(range(8)),  # losses, and the norm of gradients
        (1, 5),  # gradients of the embedding, which the last stage has, too
        (4, 5),  # along tensor
        (5, 7),  # along data, within the passes
        (5, 7),  # along data, buckets of gradients
    ]
    assert [c.ranks for c in found if "send" in c.kinds] == [(1, 5), (5, 1)]
    memory = simulate_plan(eight, parse_cluster(EIGHT)).memory[1]
    # 24 channels of 14 MiB in each group of two, twice as many among all eight; to a peer 32, in one direction.
    assert memory["communication buffers"] == (48 + 4 * 24 + 2 * 16) * 14 * MIB
    assert memory["context"] == int(0.51 * 2**30) + 8_519_680
    comes_and_goes = sum(memory[kind] for kind in ("activations", "temporaries", "communication"))
    assert memory["fragmentation"] == 22 * MIB + int(0.05 * comes_and_goes)


def test_the_account_is_the_timeline(eight: Lowered) -> None:
    found = simulate_plan(eight, parse_cluster(EIGHT))
    assert tuple(found.memory[0]) == MEMORY_KINDS
    for rank in range(2):
        assert found.timeline.peak_bytes(rank) == found.peak_bytes[rank]
        beside = (found.memory[rank][kind] for kind in OVERHEAD_KINDS)
        assert found.tensor_bytes[rank] == found.peak_bytes[rank] - sum(beside)
        of_process = found.memory[rank]["context"] + found.memory[rank]["communication buffers"]
        assert found.reserved_bytes[rank] == found.peak_bytes[rank] - of_process > found.tensor_bytes[rank]


def test_a_plan_fits_to_the_last_byte(eight: Lowered) -> None:
    cluster = parse_cluster(EIGHT)
    needed = simulate_plan(eight, cluster).peak_memory_bytes
    assert simulate_plan(eight, with_memory(cluster, needed)).fits
    short = simulate_plan(eight, with_memory(cluster, needed - 1))
    assert not short.fits
    assert max(short.shortage_bytes) == 1


def test_a_rank_is_as_small_as_its_smallest_device(eight: Lowered) -> None:
    (node,) = parse_cluster(EIGHT).nodes
    devices = (*node.devices[:6], DEVICES["A100-40G"], node.devices[7])
    found = simulate_plan(eight, Cluster("mixed", (replace(node, devices=devices),)))
    assert found.memory_limit_bytes == (DEVICES["A100-80G"].usable_bytes, DEVICES["A100-40G"].usable_bytes)


def test_what_a_driver_reports_is_what_a_plan_may_use() -> None:
    """What PyTorch says of GPUs where memory runs out, in GiB."""
    reported = {
        "V100-32G": (31.73, 31.75), "A100-40G": (39.38, 39.59), "A100-80G": (79.14, 79.33),
        "H100": (79.10, 79.33), "H200": (139.72, 139.81), "T4": (14.56, 14.76),
    }  # fmt: skip
    for name, (least, most) in reported.items():
        assert least - 1e-6 <= DEVICES[name].usable_bytes / 2**30 <= most


@pytest.mark.parametrize(
    ("name", "all_devices", "mib", "fits"),
    [
        ("T4", False, 1, False),
        ("T4", False, 8, True),
        ("T4", True, 8, False),  # two groups take 56 MiB
        ("T4", True, 64, True),
        ("A100-80G", True, 64, False),  # two groups take 672 MiB
    ],
)
def test_auto_uses_no_more_than_a_device_offers(name: str, all_devices: bool, mib: int, fits: bool) -> None:
    """With the context and a segment of each kind, and some MiB for tensors, or for groups of two as well."""
    cluster = parse_cluster(f"1x2x{name}")
    overhead = cluster.device(0).overhead
    small = with_memory(cluster, overhead.context_bytes + overhead.segment_bytes + mib * MIB)
    if not fits:
        with pytest.raises(DoesNotFitError, match="does not fit on small"):
            plan(wide(64), small, all_devices=all_devices)
        return
    found = plan(wide(64), small, all_devices=all_devices)
    assert found.plan.num_ranks == 1 + all_devices
    assert found.simulation.fits
    assert found.simulation.peak_memory_bytes <= small.device(0).usable_bytes


def test_the_search_counts_what_the_simulation_counts(eight: Lowered) -> None:
    cluster = parse_cluster(EIGHT)
    memory = simulate_plan(eight, cluster).memory[1]
    point = Point(Sharding(2, False, False, 1, 1), 2, 2, 1, "one_f_one_b", 1, "none", 0)
    comes_and_goes = sum(memory[kind] for kind in ("activations", "temporaries", "communication"))
    beside = sum(memory[kind] for kind in OVERHEAD_KINDS)
    # It does not know that two stages share the embedding.
    assert overhead_bytes(point, cluster, comes_and_goes) == beside - 24 * 14 * MIB
