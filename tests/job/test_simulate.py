"""The simulation of plans: against the schedule's own arithmetic, hand counts, and invariants."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from captured import task_of, tiny
from made_plan import changed
from torch import nn

from trainyard.cost.ops import OpSeconds, is_free
from trainyard.hardware.cluster import Cluster, Node
from trainyard.hardware.errors import HardwareError
from trainyard.hardware.overhead import NO_OVERHEAD
from trainyard.hardware.parse import parse_cluster
from trainyard.job.lower.lower import lower
from trainyard.job.plan import Plan
from trainyard.job.planning import make_setting
from trainyard.job.remesh import with_mesh
from trainyard.job.schedules import dry_run
from trainyard.job.setting import first_plan
from trainyard.job.simulate import simulate_plan
from trainyard.program.addresses import address
from trainyard.program.model import Model
from trainyard.report.prediction import simulation_document, simulation_facts

CLUSTER = parse_cluster("1x8xA100-80G")


class Constant(OpSeconds):
    """Every op takes a millisecond, and what is done outside of graphs nothing."""

    def __init__(self, seconds: float = 1e-3) -> None:
        self.seconds = seconds

    def __call__(self, node, device) -> float:
        return 0.0 if is_free(node) else self.seconds

    def buffer_op_s(self, what, num_elements, element_bytes, device) -> float:
        return 0.0


def mlp(layers: int = 2, width: int = 64, rows: int = 8) -> Model:
    net = nn.Sequential(*(nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(layers)))
    return Model("mlp", net, lambda m, batch: m(batch["x"]).square().mean(), {"x": torch.randn(rows, width)})


def lowered_of(model: Model, cluster: Cluster = CLUSTER, stages: int = 1, schedule="gpipe", **changes):
    setting = make_setting(task_of(model), cluster)
    mesh = {"data": 1, "tensor": 1, "pipeline": stages, "num_microbatches": 1, "schedule": schedule}
    mesh |= {k: changes.pop(k) for k in list(changes) if k in mesh}
    program = setting.task.program(setting.task.num_rows // mesh["num_microbatches"])
    ops = [n for n in program.graph.nodes if n.op == "call_function" and n.meta["phase"] == "forward"]
    blocks = sorted({n.meta["layer"].split(".")[-2 if "blocks" not in n.meta["layer"] else 1] for n in ops
                     if n.meta["layer"].count(".") >= 1})  # fmt: skip
    starts = []
    for index in range(1, stages):
        block = blocks[index * len(blocks) // stages]
        first = next(n for n in ops if block in n.meta["layer"].split(".")[:2] and not is_free(n))
        starts.append(address(first))
    plan: Plan = with_mesh(setting, first_plan(setting), stage_starts=tuple(starts), **mesh)
    return lower(program, changed(plan, **changes))


def free_links(num: int) -> Cluster:
    """Devices between which everything arrives at once."""
    cluster = parse_cluster(f"1x{num}xA100-80G")
    node = cluster.nodes[0]
    fast = tuple(replace(link, bandwidth_bytes_per_s=1e30, latency_s=0.0) for link in node.topology.links)
    devices = tuple(replace(d, collective_launch_s=0.0) for d in node.devices)
    return Cluster("free", (Node(replace(node.topology, links=fast), devices),))


@pytest.mark.parametrize("schedule", ["gpipe", "one_f_one_b"])
@pytest.mark.parametrize("microbatches", [1, 2, 4])
def test_a_pipeline_takes_what_the_dry_run_of_its_schedule_says(schedule, microbatches):
    lowered = lowered_of(mlp(4), free_links(2), 2, schedule, num_microbatches=microbatches)
    ops = Constant()

    def seconds(action):
        graph = lowered.stages[action.stage].segments[action.kind].graph
        own = [n for n in graph.nodes if n.op == "call_function" and "accumulate" not in n.name]
        return sum(ops(n, None) for n in own)

    expected = dry_run(lowered.plan.schedule, seconds).makespan_s
    found = simulate_plan(lowered, free_links(2), ops)
    assert expected > 0
    assert found.step_s == pytest.approx(expected, rel=1e-6)


def test_parts_of_the_time_add_up():
    found = simulate_plan(lowered_of(tiny("gpt"), stages=2, num_microbatches=2), CLUSTER)
    assert sum(found.breakdown.values()) == pytest.approx(found.step_s)
    assert found.breakdown["communication"] == pytest.approx(sum(found.exposed.values()))
    assert 0 < found.mfu < 1
    assert found.plausible_mfu == found.mfu


def test_more_than_the_known_peak_is_no_share_of_it():
    found = replace(simulate_plan(lowered_of(tiny("gpt")), CLUSTER), mfu=108.08)
    assert found.plausible_mfu is None
    too_low = "not known: a step does more than the devices' peak as the cluster gives it, which is too low"
    assert dict(simulation_facts(found))["MFU"] == too_low
    here = replace(found, plan=replace(found.plan, cluster="local:2"))
    assert dict(simulation_facts(here))["MFU"].startswith(f"{too_low}; it was measured")
    assert simulation_document(found)["mfu"] is None
    assert "more than the devices' peak as it is known, which is too low." in found.explain()


@pytest.mark.parametrize(("more", "is_tight"), [(1.0, True), (1.029, True), (1.04, False), (0.99, False)])
def test_memory_that_is_all_but_full_is_said(more, is_tight):
    found = simulate_plan(lowered_of(tiny("gpt")), CLUSTER)
    limit = round(found.peak_memory_bytes * more)
    tight = replace(found, memory_limit_bytes=(limit,))
    assert bool(tight.tightness) == is_tight
    assert ("Memory is tight: a device needs" in tight.explain()) == is_tight


def test_gradients_are_reduced_while_the_backward_goes_on():
    model = mlp(8, 512, rows=16)
    one_bucket = lowered_of(model, data=2)
    many = lowered_of(model, data=2, bucket_bytes=600_000)
    assert len(many.stages[0].buckets) > len(one_bucket.stages[0].buckets) == 1
    ops = Constant(1e-4)
    alone = simulate_plan(lowered_of(mlp(8, 512, rows=8)), CLUSTER, ops).step_s
    hidden = simulate_plan(many, CLUSTER, ops)
    shown = simulate_plan(one_bucket, CLUSTER, ops)
    assert alone < hidden.step_s < shown.step_s
    assert hidden.num_bytes[0]["all_reduce"] == shown.num_bytes[0]["all_reduce"]


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
@pytest.mark.parametrize("schedule", ["one_f_one_b", "zero_bubble_h1"])
def test_all_memory_of_a_step_in_16_bits_is_given_back(zero, schedule):
    setting = make_setting(task_of(tiny("gpt", 16), "bfloat16"), CLUSTER)
    program = setting.task.program(4)
    start = next(
        address(n) for n in program.graph.nodes
        if n.op == "call_function" and n.meta["layer"].startswith("blocks.1") and n.meta["phase"] == "forward"
    )  # fmt: skip
    plan = with_mesh(
        setting, first_plan(setting), data=2, tensor=1, pipeline=2, num_microbatches=4, schedule=schedule,
        stage_starts=(start,),
    )  # fmt: skip
    plan = changed(plan, zero, bucket_bytes=100_000)
    found = simulate_plan(lower(program, plan), CLUSTER)
    graph = found.timeline.graph
    for rank in range(2):
        _, used = found.timeline.memory_curve(rank)
        assert used[-1] == graph.device_base_bytes[rank]
        assert used.min() >= graph.device_base_bytes[rank]
        assert used.max() == found.peak_bytes[rank]


def test_recomputing_costs_time_and_saves_memory():
    lowered = lowered_of(tiny("gpt", 16))
    again = lower(lowered.program, lowered.plan.with_recomputed({"blocks.**:*"}))
    plain, less = simulate_plan(lowered, CLUSTER, Constant()), simulate_plan(again, CLUSTER, Constant())
    assert less.breakdown["recompute"] > 0
    assert less.step_s == pytest.approx(plain.step_s + less.breakdown["recompute"])
    assert less.peak_bytes < plain.peak_bytes
    assert less.model_flops == plain.model_flops


def test_a_plan_that_does_not_fit_says_what_is_short():
    cluster = parse_cluster("1x8xA100-80G")
    small = tuple(replace(d, memory_bytes=10**6, overhead=NO_OVERHEAD) for d in cluster.nodes[0].devices)
    cluster = Cluster("small", (replace(cluster.nodes[0], devices=small),))
    found = simulate_plan(lowered_of(tiny("gpt", 16), cluster), cluster)
    assert not found.fits
    assert found.shortage_bytes[0] == found.peak_bytes[0] - 10**6
    assert "does not fit: a device needs" in found.explain()
    assert simulate_plan(lowered_of(tiny("gpt", 16)), CLUSTER).fits


def test_a_cluster_that_is_too_small_is_refused():
    with pytest.raises(HardwareError, match="has 2 ranks"):
        simulate_plan(lowered_of(mlp(), data=2), parse_cluster("1x1xA100-80G"))
