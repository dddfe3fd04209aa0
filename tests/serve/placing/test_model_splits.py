"""Models split into stages and shards: seconds and weights of each split."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from trainyard.cost.collectives import collective_cost
from trainyard.cost.ops import Roofline
from trainyard.hardware.parse import parse_cluster
from trainyard.program.forward import capture_forward
from trainyard.program.model import Model
from trainyard.program.program import Program
from trainyard.serve.placing.forward_pass import forward_pass
from trainyard.serve.placing.model_splits import ModelSplit, model_splits
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
    assert whole[1, shards].shard_bytes == whole[1, 1].shard_bytes / shards == narrow[1, 1].shard_bytes


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
    assert set(found.shard_bytes) == shards
    assert {shape.pipeline_stages for shape in found.stage_s if shape.tensor_parallel == 1} == {1, 2, 4, 8}
    held = [found.shard_bytes[count] for count in sorted(shards)]
    assert held == sorted(held, reverse=True)
    assert all(size * count >= found.weight_bytes for count, size in found.shard_bytes.items())


def test_what_stays_whole_on_every_shard_counts_as_weights() -> None:
    """The words of GPT-2 do not divide by 2, so that two devices need more than half of the memory each."""
    forward = forward_pass("gpt2", NODE)
    half = forward.weight_bytes / 2
    assert forward.shard_bytes[2] > 1.2 * half
    for device_bytes, fits in ((forward.shard_bytes[2], True), (half, False)):
        models = (ModelToPlace("gpt2", forward, 0.1),)
        problem = PlacingProblem(models, 4, device_bytes, drawn_arrivals((10.0,), 10)).grouped
        assert problem.fits(ParallelConfig(1, 2), (0,)) is fits
        assert problem.fits(ParallelConfig(2), (0,))


@pytest.mark.slow
def test_a_short_objective_needs_shards() -> None:
    """A pipeline is no faster for one request, whatever its devices; shards are."""
    forward = forward_pass("gpt2-large", NODE)
    alone_s, cut_s = (sum(forward.stage_s[ParallelConfig(1, shards)]) for shards in (1, 4))
    assert cut_s < alone_s
    for shape, times in forward.stage_s.items():
        if shape.tensor_parallel == 1:
            assert sum(times) >= alone_s
