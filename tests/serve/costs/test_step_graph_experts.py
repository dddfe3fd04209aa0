"""What a step of a mixture, of latent attention and of windows launches, and how long it takes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from trainyard.hardware.parse import parse_cluster
from trainyard.job.planning import load_model
from trainyard.job.remesh import TENSOR
from trainyard.program.placement import Shard
from trainyard.program.program import tensor_of
from trainyard.serve.costs.forward_graph import forward_program
from trainyard.serve.costs.kernels import Attention, Experts, Product
from trainyard.serve.costs.predicted import PredictedKernels
from trainyard.serve.costs.split_plan import split_plan, tensor_shards, with_whole_experts
from trainyard.serve.costs.step_graph import step_graph
from trainyard.serve.deploy import FORMATS, served_model
from trainyard.serve.errors import ServeError
from trainyard.zoo import llama
from trainyard.zoo.decoder import build
from trainyard.zoo.registry import ENTRIES


def shallow(name: str, layers: int, **more):
    """A model of the zoo with fewer layers."""
    config = replace(ENTRIES[name].config, layers=layers, **more)
    with torch.device("meta"):
        return forward_program(build(name, config, 1))


@pytest.fixture(scope="module")
def qwen():
    return shallow("qwen3-30b-a3b", 3)


@pytest.fixture(scope="module")
def deepseek():
    return shallow("deepseek-v3", 3, dense_layers=(0,))


def test_a_mixture_is_one_kernel_beside_its_router(qwen):
    graph = step_graph(qwen)
    assert graph.experts == ((Experts(128, 8, 2048, 768, is_gated=True), 3),)
    assert dict(graph.products) == {
        Product(2048, 5120): 3,
        Product(4096, 2048): 3,
        Product(2048, 128): 3,
        Product(2048, 151936, is_of_last_tokens=True): 1,
    }
    launched = dict(graph.pointwise)
    assert launched[3 * 8 * 768] == 3  # gate times up of the experts that a token goes to
    assert not [
        num for num in launched if num > 8 * 2048 + 4 * 2048 + 100
    ]  # no tokens are copied for experts


def test_every_device_has_a_part_of_each_expert_and_they_add_up_once(qwen):
    whole, part = step_graph(qwen), step_graph(qwen, split_plan(qwen, tensor_parallel=4))
    assert part.experts == ((Experts(128, 8, 2048, 192, is_gated=True), 3),)
    assert part.all_reduces == ((2048, 1 + 2 * 3),)
    assert Product(2048, 128) in dict(part.products)  # the router is on every device
    norms_and_routers = 2048 + 3 * (2 * 2048 + 2 * 128 + 2048 * 128)
    assert 4 * (part.num_weights - norms_and_routers) == whole.num_weights - norms_and_routers


def test_experts_may_be_dealt_out_instead(qwen):
    cut, dealt = (
        step_graph(qwen, split_plan(qwen, tensor_parallel=4)),
        step_graph(qwen, split_plan(qwen, tensor_parallel=4), expert_parallel=True),
    )
    assert dealt.experts == ((Experts(128, 8, 2048, 768, is_gated=True, num_devices=4), 3),)
    assert replace(dealt, experts=cut.experts) == cut
    few = shallow("mixtral-8x7b", 1, mixture=replace(ENTRIES["mixtral-8x7b"].config.mixture, experts=6))
    with pytest.raises(ServeError, match="6 experts cannot be dealt out to 4 devices"):
        step_graph(few, split_plan(few, tensor_parallel=4), expert_parallel=True)


def test_a_plan_with_whole_experts_has_as_many_weights_on_a_device(qwen):
    sliced = split_plan(qwen, tensor_parallel=4)
    whole = with_whole_experts(qwen, sliced)
    assert (
        whole.placements["blocks.*.mlp.gate"] == whole.placements["blocks.*.mlp.down"] == {TENSOR: Shard(0)}
    )
    assert sliced.placements["blocks.*.mlp.gate"] == {TENSOR: Shard(2)}
    others = [{n: p for n, p in plan.placements.items() if ".mlp." not in n} for plan in (sliced, whole)]
    assert others[0] == others[1] != {}
    held = [
        [tensor_of(p.nodes[i.node]) for i in p.params]
        for p in (tensor_shards(qwen, each).program for each in (sliced, whole))
    ]
    assert (32, 2048, 768) in [tuple(tensor.shape) for tensor in held[1]]
    assert sum(tensor.numel() for tensor in held[0]) == sum(tensor.numel() for tensor in held[1])
    alone = split_plan(qwen)
    assert with_whole_experts(qwen, alone) == alone


def test_latent_attention_keeps_one_vector_of_each_token(deepseek):
    """DeepSeek-V3, section 4.2: 128 heads, 512 and 64 elements kept of a token; a shared expert and the router."""
    graph = step_graph(deepseek)
    assert graph.attention == ((Attention(128, 128, 160, latent=512, rotary=64), 3),)
    assert graph.cached_per_token == 3 * 576
    assert graph.experts == ((Experts(256, 8, 7168, 2048, is_gated=True), 2),)
    assert dict(graph.products) == {
        Product(7168, 1536 + 576): 3,
        Product(1536, 128 * 192): 3,
        Product(512, 128 * 256): 3,
        Product(128 * 128, 7168): 3,
        Product(7168, 2 * 18432): 1,
        Product(18432, 7168): 1,
        Product(7168, 256 + 2 * 2048): 2,
        Product(2048, 7168): 2,
        Product(7168, 129280, is_of_last_tokens=True): 1,
    }


def test_heads_of_latent_attention_are_cut_and_its_cache_is_not(deepseek):
    part = step_graph(deepseek, split_plan(deepseek, tensor_parallel=8))
    assert part.attention == ((Attention(16, 16, 160, latent=512, rotary=64), 3),)
    assert part.cached_per_token == 3 * 576
    assert Product(7168, 1536 + 576) in dict(part.products)
    assert part.all_reduces == ((7168, 1 + 2 * 3),)  # shared and chosen experts are added up together


def test_windows_are_read_from_the_mask():
    gpt_oss = shallow("gpt-oss-20b", 2)
    graph = step_graph(gpt_oss, split_plan(gpt_oss, tensor_parallel=2))
    assert graph.attention == ((Attention(32, 4, 64), 1), (Attention(32, 4, 64, window=128), 1))
    assert graph.experts == ((Experts(32, 4, 2880, 1440, is_gated=True), 2),)


@pytest.mark.parametrize("window", [0, 1, 5, 100])
def test_pairs_of_a_chunk_are_those_within_the_window(window):
    attention = Attention(1, 1, 8, window)
    for num, before in ((1, 0), (4, 0), (7, 3), (3, 20)):
        seen = [min(before + place, window or 10**9) for place in range(1, num + 1)]
        assert attention.num_pairs(num, before) == sum(seen)


def test_experts_that_are_touched_are_those_of_random_choices():
    experts = Experts(16, 2, 64, 32, is_gated=True)
    draws = np.random.default_rng(0).random((4000, 12, 16)).argsort(-1)[..., :2]
    drawn = np.mean([len(np.unique(step)) for step in draws])
    assert experts.mean_active(12) == pytest.approx(drawn, rel=0.01)
    assert experts._replace(num_devices=4).mean_active(12) == pytest.approx(drawn / 4, rel=0.01)
    assert experts.mean_active(1) == pytest.approx(2)


def test_weights_of_chosen_experts_are_read_once():
    cluster = parse_cluster("1x1xH100")
    kernels = PredictedKernels(cluster, 1)
    experts = Experts(128, 8, 2048, 768, is_gated=True)
    one_s, two_s = kernels.experts_s(1, experts), kernels.experts_s(1, experts._replace(num_used=16))
    efficiency = cluster.devices[0].efficiency
    rate = cluster.devices[0].memory_bandwidth_bytes_per_s * efficiency.max_memory_fraction
    assert two_s - one_s == pytest.approx(8 * 3 * 2048 * 768 * 2 / rate, rel=0.01)
    every_s = kernels.experts_s(2000, experts)
    assert every_s > 128 * 3 * 2048 * 768 * 2 / rate
    assert every_s < 1.5 * kernels.experts_s(
        1000, experts
    )  # bound by the weights, which are all read in both
    dealt = experts._replace(num_devices=4)
    assert kernels.experts_s(2000, dealt) < 0.3 * every_s


def test_latent_attention_decodes_by_what_it_keeps():
    cluster = parse_cluster("1x1xH100")
    kernels, device = PredictedKernels(cluster, 1), cluster.devices[0]
    rate = device.memory_bandwidth_bytes_per_s * device.efficiency.max_memory_fraction
    few, lengths = Attention(16, 16, 160, latent=512, rotary=64), np.array([1000.0, 5000.0])
    short_s, long_s = kernels.decode_attention_s(few, 64, lengths)
    assert long_s - short_s == pytest.approx(64 * 4000 * 576 * 2 / rate)
    # 128 heads that all multiply by the same vector are bound by flops, not by memory.
    many = few._replace(num_heads=256, num_kv_heads=256)
    flops = 64 * 5000 * 256 * 2 * (576 + 512)
    computing_s = flops / (device.peak("bfloat16") * device.efficiency.max_matmul_fraction)
    assert kernels.decode_attention_s(many, 64, lengths)[1] == pytest.approx(computing_s, rel=0.02)
    assert kernels.decode_attention_s(few._replace(window=100), 64, lengths)[0] < short_s


@pytest.mark.slow
def test_devices_have_copies_of_heads_where_there_are_fewer():
    """Qwen3-30B-A3B has 4 heads of keys and values."""
    cluster = parse_cluster("1x8xH100")
    four = served_model("qwen3-30b-a3b", cluster, tensor_parallel=4)
    eight = served_model("qwen3-30b-a3b", cluster, tensor_parallel=8)
    assert eight.cache_bytes_per_token == four.cache_bytes_per_token == 48 * 2 * 128 * 2
    copied, rest = 48 * 2 * 2048 * 128, 48 * (2 * 2048 + 2 * 128 + 2048 * 128) + 2048
    whole = 30_532_122_624
    cut = whole - rest - 4 * copied  # what no device has a copy of
    assert eight.weight_bytes == 2 * (cut // 8 + copied + rest)
    with pytest.raises(ServeError, match="heads of keys and values do not divide"):
        served_model("qwen3-30b-a3b", parse_cluster("1x6xH100"), tensor_parallel=6)


def test_a_norm_over_all_heads_is_added_up_over_the_devices():
    """MiniMax-M2: one sum of two numbers of each token, for queries and keys together."""
    config = replace(ENTRIES["qwen3-8b"].config, layers=2, qk_norm="all", rotary=64)
    with torch.device("meta"):
        program = forward_program(llama.build("all", config, 1))
    whole, part = step_graph(program), step_graph(program, split_plan(program, tensor_parallel=4))
    assert whole.attention == ((Attention(32, 8, 128), 2),)
    assert part.attention == ((Attention(8, 2, 128), 2),)
    assert part.all_reduces == ((2, 2), (4096, 1 + 2 * 2))
    norms = (2 * 2 + 1) * 4096
    assert 4 * (part.num_weights - norms) == whole.num_weights - norms  # those of heads are cut with them


def test_biases_and_tied_words_are_cut_with_what_they_belong_to():
    config = replace(ENTRIES["qwen3-8b"].config, layers=2, qk_norm="none", qkv_bias=True, tied=True)
    with torch.device("meta"):
        program = forward_program(llama.build("qwen2", config, 1))
    whole, part = step_graph(program), step_graph(program, split_plan(program, tensor_parallel=4))
    norms = (2 * 2 + 1) * 4096
    assert 4 * (part.num_weights - norms) == whole.num_weights - norms
    assert whole.num_weights == ENTRIES["qwen3-8b"].config.vocab * 4096 + norms + 2 * (
        2 * 4096 * 4096 + 2 * 1024 * 4096 + 4096 + 2 * 1024 + 3 * 4096 * 12288
    )
    assert Product(4096, 151936 // 4, is_of_last_tokens=True) in dict(part.products)
    assert part.all_reduces == ((4096, 1 + 2 * 2),)


def test_weights_of_four_bits_have_scales_and_are_computed_where_there_are_units():
    assert FORMATS["float4"].num_bytes == 0.5625
    blackwell, hopper = parse_cluster("1x1xB200").devices[0], parse_cluster("1x1xH100").devices[0]
    assert blackwell.peak("float4") == 2 * blackwell.peak("float8")
    assert hopper.peak("float4") == hopper.peak("float8")
    served = served_model("gpt-oss-20b", parse_cluster("1x1xH100"), dtype="float4")
    num_weights = sum(p.numel() for p in load_model("gpt-oss-20b").module.parameters())
    assert served.weight_bytes == int(num_weights * 0.5625)
