"""Megatron-LM (arXiv 1909.08053 and 2104.04473): communication, parameters, bubble, and how sizes are chosen."""

from dataclasses import replace

import pytest
from captured import tiny
from counting import collectives, planned, small_gpt

from trainyard.hardware.overhead import NO_OVERHEAD
from trainyard.hardware.parse import parse_cluster
from trainyard.job.catalog import parse_strategies
from trainyard.job.planning import make_setting
from trainyard.job.schedules import dry_run, make_schedule
from trainyard.job.setting import apply
from trainyard.job.strategies.parallel.megatron import bubble_fraction
from trainyard.job.task import Task
from trainyard.zoo.registry import build

ROWS, CONTEXT, HIDDEN = 2, 64, 128
STREAM = ROWS * CONTEXT * HIDDEN


@pytest.mark.parametrize("layers", [1, 3])
def test_four_all_reduces_per_layer(layers: int) -> None:
    # 1909.08053 section 3, figure 4: two all-reduces in the forward pass and two in the backward pass.
    _, lowered = planned(
        small_gpt(layers), "megatron(tensor=2, pipeline=1, microbatch_rows=2)", "1x2xA100-80G"
    )
    found = collectives(lowered, "tensor", at_least=STREAM)
    # One more each for the embedding (f of the input) and the logits (g of their gradient).
    assert found == {("all_reduce", "F"): 2 * layers + 1, ("all_reduce", "B"): 2 * layers + 1}


def test_logits_are_not_gathered() -> None:
    # 1909.08053 section 3: the cross entropy reduces scalars per token instead of gathering b x s x v elements.
    _, lowered = planned(small_gpt(1), "megatron(tensor=2, pipeline=1, microbatch_rows=2)", "1x2xA100-80G")
    names = {name for name, _ in collectives(lowered, "tensor", at_least=ROWS * CONTEXT * 512 // 2)}
    assert names == set()


@pytest.mark.parametrize("model", ["gpt", "llama"])
def test_parameters_per_rank(model: str) -> None:
    _, whole = planned(tiny(model), "", "1x1xA100-80G")
    _, cut = planned(tiny(model), "megatron(tensor=2, pipeline=1)", "1x2xA100-80G")
    assert {path: p.shape for path, p in cut.params.items()} != {p: q.shape for p, q in whole.params.items()}
    for path, param in whole.params.items():
        # All matrices are halved, but learned positions; norms and the biases of row products are whole.
        halved = len(param.shape) == 2 and "positions" not in path
        halved |= path.endswith(("qkv.bias", "up.bias"))
        assert cut.params[path].numel == param.numel // (2 if halved else 1), path


@pytest.mark.parametrize(("ranks", "microbatches", "chunks"), [(4, 8, 2), (4, 8, 4), (8, 16, 2)])
def test_interleaving_divides_the_bubble(ranks: int, microbatches: int, chunks: int) -> None:
    # 2104.04473 section 2.2.2: bubble time fraction (p - 1) / (v m).
    whole = {"F": 1.0, "B": 2.0}
    part = {kind: seconds / chunks for kind, seconds in whole.items()}
    ideal_s = microbatches * sum(whole.values())
    plain = dry_run(make_schedule("one_f_one_b", ranks, microbatches), whole).makespan_s
    interleaved = dry_run(make_schedule("interleaved", ranks, microbatches, chunks), part).makespan_s
    assert plain / ideal_s - 1 == pytest.approx(bubble_fraction(ranks, microbatches))
    assert interleaved / ideal_s - 1 == pytest.approx(bubble_fraction(ranks, microbatches, chunks))


def test_tensor_parallel_fills_the_node_before_the_pipeline_grows() -> None:
    # Takeaways 1 and 2: the smallest model-parallel size that fits; tensor up to a node, then pipeline.
    task = Task(build("gpt-tiny", 16))
    cluster = parse_cluster("2x4xA100-80G")
    chosen = []
    for kib in (4096, 1100, 600, 320):
        small = {"memory_bytes": kib * 1024, "overhead": NO_OVERHEAD}
        devices = tuple(replace(d, **small) for d in cluster.nodes[0].devices)
        nodes = (replace(cluster.nodes[0], devices=devices),) * 2
        plan = apply(parse_strategies("megatron"), make_setting(task, replace(cluster, nodes=nodes)))
        chosen.append((plan.mesh.size("tensor"), plan.pipeline, plan.mesh.size("data")))
    assert chosen == [(1, 1, 8), (2, 1, 4), (4, 1, 2), (4, 2, 1)]


def test_layers_are_divided_evenly() -> None:
    plan, lowered = planned(
        small_gpt(4, rows=4), "megatron(tensor=1, pipeline=2, stages_per_rank=2)", "1x2xA100-80G"
    )
    assert plan.schedule.name == "interleaved"
    for stage in lowered.stages:
        layers = {p.split(".")[1] for b in stage.buckets for p in b.paths if p.startswith("blocks.")}
        assert layers == {str(stage.stage)}
