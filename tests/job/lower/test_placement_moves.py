"""Which collectives a plan's graphs hold: what the papers say, and no more."""

from collections import Counter
from functools import cache

import pytest
import torch
from exactness import Cell, make_plan
from torch import fx

from trainyard.job.lower.axes import shard_whole
from trainyard.program import spmd
from trainyard.program.capture import capture
from trainyard.program.program import Program
from trainyard.zoo.registry import build


@cache
def captured(model: str) -> Program:
    return capture(build(model, Cell.rows))


def collectives(cell: Cell) -> list[fx.Node]:
    program = captured(cell.model)
    local = shard_whole(program, make_plan(cell, program))
    return [n for n in local.graph.nodes if n.target in spmd.COLLECTIVES]


def names(nodes: list[fx.Node]) -> Counter[str]:
    return Counter(n.target.__name__ for n in nodes)  # type: ignore[union-attr]


def large(nodes: list[fx.Node], numel: int) -> list[fx.Node]:
    return [n for n in nodes if n.args[0].meta["val"].numel() >= numel]  # type: ignore[union-attr]


@pytest.mark.parametrize("model", ["gpt-tiny", "llama-tiny", "bert-tiny"])
def test_megatron_reduces_twice_per_layer_and_pass(model: str) -> None:
    # Shoeybi et al., arXiv 1909.08053, section 3: two all-reduces forward and two backward in every layer.
    found = large(collectives(Cell(model, tensor=2)), 8 * 16 * 64)
    assert names(found) == {"all_reduce": 2 * (2 + 2)}


def test_sequence_parallel_scatters_and_gathers_instead() -> None:
    # Korthikanti et al., arXiv 2205.05198, section 4.2.2: an all-reduce becomes a reduce-scatter and an
    # all-gather; the inputs of the column-parallel layers are gathered once more for their weight gradients.
    cell = Cell("gpt-tiny", tensor=2, tensor_style="sequence")
    inner = [n for n in collectives(cell) if n.meta["layer"].startswith("blocks.1")]
    activations = large(inner, 8 * 16 * 64 // 2)
    assert names(activations) == {"reduce_scatter": 4, "all_gather": 6}


@pytest.mark.parametrize("model", ["gpt-tiny", "llama-tiny", "bert-tiny"])
def test_vocabulary_parallel_loss_moves_no_logits(model: str) -> None:
    # Only numbers per token: their maximum, their sum of exponentials, and the gradient's sum.
    found = collectives(Cell(model, tensor=2, tensor_style="vocabulary"))
    assert not [n for n in found if 128 in n.args[0].meta["val"].shape[1:]]  # type: ignore[union-attr]
    assert not [
        n for n in found if 64 in n.args[0].meta["val"].shape[1:] and n.args[0].meta["val"].dim() == 2
    ]  # type: ignore[union-attr]
    maxima = [n for n in found if n.target is spmd.all_reduce and n.args[2] == "max"]
    assert len(maxima) == 1


def test_batch_norm_of_a_cut_batch_reduces_statistics_only() -> None:
    # Which labels count is known of a few rows at once; it is no statistic.
    found = [n for n in collectives(Cell("resnet-tiny", data=2)) if n.meta["val"].dtype != torch.bool]
    assert names(found) == {"all_reduce": len(found)}
    assert not large(found, 17)
    norms = 6
    # Two forward (mean, variance), two backward per layer.
    assert len(found) == 4 * norms


def test_batch_norm_stays_one_op_where_the_batch_is_whole() -> None:
    cell = Cell("resnet-tiny", tensor=2, tensor_style="columns")
    program = captured(cell.model)
    local = shard_whole(program, make_plan(cell, program))
    assert sum("batch_norm" in str(n.target) for n in local.graph.nodes) == 12


def test_data_parallel_gradients_stay_terms_until_buckets_sum_them() -> None:
    for model in ("gpt-tiny", "llama-tiny", "moe-tiny", "dlrm-tiny"):
        found = collectives(Cell(model, data=2))
        assert not large(found, 9), model


def test_expert_parallel_exchanges_tokens() -> None:
    # Lepikhin et al., GShard, arXiv 2006.16668, section 3.2: all-to-all before and after the experts.
    found = collectives(Cell("moe-tiny", data=2, data_style="experts"))
    forward = large([n for n in found if n.meta["phase"] == "forward"], 1000)
    assert names(forward) == {"all_to_all": 2}
    assert set(names(large(found, 1000))) == {"all_to_all"}
