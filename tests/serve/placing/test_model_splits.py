"""Models split into stages and shards: seconds and weights of each split."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from trainyard.cost.collectives import collective_cost
from trainyard.cost.ops import Roofline, collective_of
from trainyard.hardware.parse import parse_cluster
from trainyard.job.lower.axes import meshes_of
from trainyard.job.lower.cut import cut, stage_programs
from trainyard.job.lower.lower import lower
from trainyard.job.lower.resolve import resolve
from trainyard.job.lower.stages import shard_stages
from trainyard.job.planning import load_model
from trainyard.program.forward import capture_forward
from trainyard.program.model import Model
from trainyard.program.program import Program, size_bytes, tensor_of
from trainyard.serve.placing.forward_pass import ForwardPass, forward_pass
from trainyard.serve.placing.model_splits import ModelSplit, model_splits
from trainyard.serve.placing.policies import AlpaServe, Nexus
from trainyard.serve.placing.problem import ModelToPlace, PlacingProblem, drawn_arrivals
from trainyard.serve.policies.alpaserve.problem import ParallelConfig

NODE = parse_cluster("1x4xA100-80G")


def mlp(width: int) -> Program:
    """Two products of 1,024 rows, between which every element is alone."""
    module = nn.Sequential(nn.Linear(512, width, bias=False), nn.ReLU(), nn.Linear(width, 512, bias=False))
    model = Model("mlp", module, lambda m, b: m(b).mean(), torch.zeros(1, 1024, 512))
    return capture_forward(model, 1, torch.bfloat16)


def splits_of(program: Program, cluster: str = "1x4xA100-80G") -> dict[tuple[int, int], ModelSplit]:
    return {tuple(each.shape): each for each in model_splits(program, parse_cluster(cluster), Roofline())}  # type: ignore[misc]


@pytest.mark.parametrize("shards", [2, 4])
def test_shards_are_as_fast_as_a_narrow_model_and_a_sum_over_devices(shards: int) -> None:
    whole, narrow = splits_of(mlp(8192)), splits_of(mlp(8192 // shards), "1x1xA100-80G")
    summed_s = collective_cost(NODE, "all_reduce", range(shards), 1024 * 512 * 2).seconds
    assert whole[1, shards].stage_s == (pytest.approx(narrow[1, 1].stage_s[0] + summed_s),)
    (whole_bytes,), (shard_bytes,), (narrow_bytes,) = (
        each.stage_bytes for each in (whole[1, 1], whole[1, shards], narrow[1, 1])
    )
    assert shard_bytes == whole_bytes / shards == narrow_bytes


def test_splits_are_all_powers_of_two_that_there_are_devices_for() -> None:
    assert set(splits_of(mlp(1024))) == {(1, 1), (2, 1), (4, 1), (1, 2), (2, 2), (1, 4)}
    assert set(splits_of(mlp(1024), "1x3xA100-80G")) == {(1, 1), (2, 1), (1, 2)}
    assert max(p * t for p, t in splits_of(mlp(1024), "2x8xA100-80G")) == 8


def test_shards_need_fast_links() -> None:
    """Shards send each other sums, stages send a value once: between nodes shards are slower than one device."""
    fast, slow = (splits_of(mlp(8192), f"{nodes}xA100-80G") for nodes in ("1x4", "4x1"))
    for splits, in_favour in ((fast, True), (slow, False)):
        assert (splits[1, 4].stage_s[0] < splits[1, 1].stage_s[0]) is in_favour
        assert sum(splits[2, 1].stage_s) > splits[1, 1].stage_s[0]
    parts = fast[2, 2].stage_s
    assert len(parts) == 2
    assert sum(parts) > fast[1, 2].stage_s[0] > max(parts)


@pytest.mark.parametrize(
    ("model", "shards"), [("gpt-tiny", {1, 2, 4}), ("bert-tiny", {1, 2, 4}), ("resnet-tiny", {1})]
)
def test_models_that_cannot_be_cut_lack_shards(model: str, shards: set[int]) -> None:
    """Tiny transformers have four heads, which eight devices cannot share; convolutions are not cut."""
    found = forward_pass(model, parse_cluster("1x8xA100-80G"))
    assert {shape.tensor_parallel for shape in found.stage_s} == shards
    assert set(found.stage_bytes) == set(found.plans) == set(found.stage_s)
    assert {shape.pipeline_stages for shape in found.stage_s if shape.tensor_parallel == 1} == {1, 2, 4, 8}
    held = [found.stage_bytes[ParallelConfig(1, count)][0] for count in sorted(shards)]
    assert held == sorted(held, reverse=True)
    for shape, sizes in found.stage_bytes.items():
        assert sum(sizes) * shape.tensor_parallel >= found.weight_bytes


def test_what_stays_whole_on_every_shard_counts_as_weights() -> None:
    """The words of GPT-2 do not divide by 2, so that two devices need more than half of the memory each."""
    forward = forward_pass("gpt2", NODE)
    half = forward.weight_bytes / 2
    (held,) = forward.stage_bytes[ParallelConfig(1, 2)]
    assert held > 1.2 * half
    assert fits_gpt2(forward, held, ParallelConfig(1, 2))
    assert not fits_gpt2(forward, half, ParallelConfig(1, 2))


def test_the_stage_with_most_weights_needs_the_memory() -> None:
    """The first stage of GPT-2 has its words, and the last one has them again, for the head."""
    forward = forward_pass("gpt2", NODE)
    held = forward.stage_bytes[ParallelConfig(2)]
    assert sum(held) > 1.2 * forward.weight_bytes
    assert fits_gpt2(forward, max(held), ParallelConfig(2))
    assert not fits_gpt2(forward, max(held) - 1e3, ParallelConfig(2))


def fits_gpt2(forward: ForwardPass, device_bytes: float, shape: ParallelConfig) -> bool:
    models = (ModelToPlace("gpt2", forward, 0.1),)
    problem = PlacingProblem(models, 4, device_bytes, drawn_arrivals((10.0,), 10)).grouped
    return problem.fits(shape, (0,))


def program_of(model: str) -> Program:
    with torch.device("meta"):
        return capture_forward(load_model(model), 1, torch.bfloat16)


@pytest.mark.parametrize("model", ["gpt-tiny", "resnet-tiny", "moe-tiny"])
def test_seconds_and_weights_are_those_of_the_stages_that_level_1_makes_of_the_plan(model: str) -> None:
    """Whatever a plan says of a stage is what it was chosen for: its ops, what it waits for, and its weights."""
    program, roofline = program_of(model), Roofline()
    splits = splits_of(program)
    assert {(1, 1), (2, 1)} <= splits.keys()
    for (num_stages, shards), split in splits.items():
        named = resolve(program, split.plan)
        parts = cut(program, named.stage_starts)
        made = shard_stages(stage_programs(program, parts, num_stages), meshes_of(program, named))
        assert len(made) == num_stages == len(split.plan.stages)
        assert split.plan.num_ranks == num_stages * shards
        took_s = [0.0] * num_stages
        for number, stage in enumerate(made):
            for node in stage.program.graph.nodes:
                collective = collective_of(node)
                took_s[number] += (
                    roofline(node, NODE.devices[0])
                    if collective is None
                    else collective_cost(NODE, collective[0], range(shards), collective[1]).seconds
                )
            if number:
                pairs = [((number - 1) * shards + i, number * shards + i) for i in range(shards)]
                arriving = bytes_of(stage.program, "value")
                took_s[number] += collective_cost(NODE, "send", pairs[0], arriving, pairs).seconds
            unused = (
                bytes_of(program, "buffer", "param") - used_bytes(program)
                if number == 0 < num_stages - 1
                else 0
            )
            assert bytes_of(stage.program, "buffer", "param") + unused == split.stage_bytes[number]
        logits = [split.stage_s[-1] - took_s[-1]] if shards > 1 else []  # are put together at last
        assert all(0 <= seconds < 1e-4 for seconds in logits)
        took_s[-1] += sum(logits)
        assert split.stage_s == pytest.approx(took_s, rel=1e-9)


def bytes_of(program: Program, *kinds: str) -> int:
    return sum(
        size_bytes(tensor_of(program.nodes[each.node])) for each in program.inputs if each.kind in kinds
    )


def used_bytes(program: Program) -> int:
    nodes = [program.nodes[each.node] for each in program.inputs if each.kind in ("buffer", "param")]
    return sum(size_bytes(tensor_of(node)) for node in nodes if node.users)


def test_every_weight_is_on_one_stage_but_the_words_that_are_also_the_head() -> None:
    program = program_of("gpt-tiny")
    splits = splits_of(program)
    assert {1, 2} <= {num_stages for num_stages, _ in splits}
    for (num_stages, _), split in splits.items():
        params = lower(program, split.plan).params
        held = [0.0] * num_stages
        for param in params.values():
            for stage in param.stages:
                held[stage] += math.prod(param.shape) * 2
        assert tuple(held) == split.stage_bytes
        shared = {path: param.stages for path, param in params.items() if len(param.stages) != 1}
        assert shared == ({"tokens.weight": (0, num_stages - 1)} if num_stages > 1 else {})


def test_the_replica_of_a_placement_has_the_plan_whose_seconds_were_used() -> None:
    forward = forward_pass("gpt-tiny", NODE)
    models = (ModelToPlace("gpt-tiny", forward, 0.1),)
    history = drawn_arrivals((1000.0,), 200)
    # Too little for a device with all of it: there is no other way than stages or shards.
    problem = PlacingProblem(models, 4, 0.6 * forward.weight_bytes, history)
    roomy = PlacingProblem(models, 4, 2 * forward.weight_bytes, history)
    groups = AlpaServe(num_moves=10).decide(problem).serve(history).placement.groups
    packed = Nexus().decide(roomy).serve(history).placement.groups
    assert groups
    assert packed
    for group in (*groups, *packed):
        (replica,) = group.replicas
        shape = ParallelConfig(replica.pipeline_stages, replica.tensor_parallel)
        assert replica.plan is not None
        assert replica.plan == forward.plans[shape]
        assert (replica.plan.cluster, replica.plan.dtype, replica.plan.model) == (
            "1x4xA100-80G",
            "bfloat16",
            "gpt-tiny",
        )
    assert all(group.replicas[0].num_devices > 1 for group in groups)
    assert all(group.replicas[0].num_devices == 1 for group in packed)


@pytest.mark.slow
def test_a_short_objective_needs_shards() -> None:
    """A pipeline is no faster for one request, whatever its devices; shards are."""
    forward = forward_pass("gpt2-large", NODE)
    alone_s, cut_s = (sum(forward.stage_s[ParallelConfig(1, shards)]) for shards in (1, 4))
    assert cut_s < alone_s
    for shape, times in forward.stage_s.items():
        if shape.tensor_parallel == 1:
            assert sum(times) >= alone_s
