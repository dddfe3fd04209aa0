"""What a step launches, read from a model's graph."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainyard.job.planning import load_model
from trainyard.program.model import Model
from trainyard.serve.costs.forward_graph import forward_program
from trainyard.serve.costs.kernels import Attention, Product
from trainyard.serve.costs.split_plan import split_plan
from trainyard.serve.costs.step_graph import stage_graphs, step_graph
from trainyard.serve.errors import ServeError


@pytest.fixture(scope="module")
def llama():
    with torch.device("meta"):
        return forward_program(load_model("llama3-8b"))


def test_llama_3_8b_launches_what_its_sizes_say(llama):
    """Grattafiori et al. 2024, table 3: 32 layers of 4,096, 32 heads and 8 of keys, MLP of 14,336."""
    graph = step_graph(llama)
    assert dict(graph.products) == {
        Product(4096, 6144): 32,  # queries, keys and values together
        Product(4096, 4096): 32,
        Product(4096, 28672): 32,  # gate and up together
        Product(14336, 4096): 32,
        Product(4096, 128256, is_of_last_tokens=True): 1,
    }
    assert graph.attention == ((Attention(32, 8, 128), 32),)
    assert graph.cached_per_token == 32 * 2 * 8 * 128
    assert graph.num_weights == 8_030_261_248
    assert not graph.all_reduces
    # The sum with what came before and its norm: two values in, two out; gate times up: two in, one out.
    assert dict(graph.pointwise)[4 * 4096] == 63
    assert dict(graph.pointwise)[3 * 14336] == 32


def test_a_group_of_four_has_a_quarter_each_and_adds_up_twice_a_layer(llama):
    whole, part = step_graph(llama), step_graph(llama, split_plan(llama, tensor_parallel=4))
    assert dict(part.products) == {
        Product(4096, 1536): 32,
        Product(1024, 4096): 32,
        Product(4096, 7168): 32,
        Product(3584, 4096): 32,
        Product(4096, 32064, is_of_last_tokens=True): 1,
    }
    assert part.attention == ((Attention(8, 2, 128), 32),)
    assert part.all_reduces == (
        (4096, 2 * 32 + 1),
    )  # one after the look-up, of which each has a part of the rows
    assert part.all_gathers == ((128256, 1),)
    norms = 65 * 4096
    assert 4 * (part.num_weights - norms) == whole.num_weights - norms


def test_more_shards_than_heads_of_keys_are_refused(llama):
    with pytest.raises(ServeError, match="cannot be served in 16 shards: its heads"):
        step_graph(llama, split_plan(llama, tensor_parallel=16))


def test_any_number_of_tokens_is_one_graph():
    """What is read does not depend on the length that was captured."""
    with torch.device("meta"):
        model = load_model("gpt-tiny")
        short = step_graph(forward_program(model))
    assert short.attention == ((Attention(4, 4, 16), 2),)
    assert (Product(64, 128, is_of_last_tokens=True), 1) in short.products


class _Scores(nn.Module):
    """Attention whose scores are written out."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(64, 32)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        return F.softmax(x @ x.transpose(1, 2), -1) @ x


def _loss(module: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    return module(batch["tokens"]).mean()


def test_attention_that_is_written_out_is_refused():
    batch = {"tokens": torch.zeros(2, 16, dtype=torch.int64)}
    with pytest.raises(ServeError, match=r"square of a sequence|two values that depend on the tokens"):
        step_graph(forward_program(Model("scores", _Scores(), _loss, batch)))


def test_a_model_of_images_is_refused():
    with torch.device("meta"):
        resnet = load_model("resnet-tiny")
    with pytest.raises(ServeError, match="resnet-tiny is no language model"):
        forward_program(resnet)


@pytest.mark.parametrize("tensor_parallel", [1, 4])
def test_stages_launch_together_what_the_model_does(llama, tensor_parallel):
    """Ops are not fused over the border of two stages; all else is in one of them."""
    plan = split_plan(llama, tensor_parallel=tensor_parallel, pipeline_stages=5)
    whole, stages = step_graph(llama, plan), stage_graphs(llama, plan)
    for name in ("products", "attention", "all_reduces", "all_gathers"):
        parts = Counter()
        for stage in stages:
            parts.update(dict(getattr(stage, name)))
        assert parts == dict(getattr(whole, name)), name
    assert [dict(stage.attention).popitem()[1] for stage in stages] == [6, 6, 7, 6, 7]
    assert sum(stage.num_weights for stage in stages) == whole.num_weights
    assert [any(product.is_of_last_tokens for product, _ in stage.products) for stage in stages] == [
        False, False, False, False, True,
    ]  # fmt: skip
    assert stages[1] == stages[3]


def test_one_stage_launches_all(llama):
    assert stage_graphs(llama, split_plan(llama)) == (step_graph(llama),)
