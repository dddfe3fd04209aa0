"""A served model pays for its collectives on the links that it has, whatever its step times are read from.

Six devices of one node: a message takes 1 us and then 100 GB/s. All expected seconds are those of rings.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from trainyard.hardware.cluster import Cluster, Node
from trainyard.hardware.devices import DeviceSpec, Efficiency
from trainyard.hardware.interconnects import Interconnect
from trainyard.hardware.nodes import switched_node
from trainyard.serve.costs.kernels import Attention, Experts, Product, StepGraph
from trainyard.serve.costs.predicted import PredictedKernels
from trainyard.serve.costs.sources import step_costs
from trainyard.serve.errors import ServeError

GAP_S, MEMORY_S, RAMP_S = 0.5e-6, 2e3 / 0.25e12, 3e6 / 2e12
DEVICE = DeviceSpec(
    "G", 2**34, {"float32": 1e12, "bfloat16": 4e12, "float8": 8e12}, 1e12, 1e-6,
    Efficiency(0.5, 3e6, 0.25, 2e3), "test", 7e-6,
)  # fmt: skip
LINK = Interconnect("switch", 1e11, 1.0, 1e-6, "test")
CLUSTER = Cluster("six", (Node(switched_node(6, LINK, 1, LINK), (DEVICE,) * 6),))
# Without products and pointwise kernels: all that tokens cost is sent.
SENDS = StepGraph(
    (), ((Attention(4, 2, 8), 3),), (), ((500_000, 2), (1_000_000, 5)), ((3_000_000, 4),), 700_000, 1,
    ((Experts(16, 2, 8, 4, True), 3),),
)  # fmt: skip


def ring_s(num_rounds: int, num_ranks: int, num_elements: int) -> float:
    """Of elements of 16 bits. A step is replayed as a recorded graph: nothing is launched."""
    return num_rounds * (1e-6 + 2 * num_elements / num_ranks / 1e11)


def profile(folder):
    """Layers that take no time to speak of."""
    rows = ("embedding,tokens", "layernorm,tokens", "qkv_proj,tokens", "lm_head,sequences", "moe,tokens")
    lines = [f"G,a/M,3,{row},{n},{n}e-9" for row in rows for n in (1, 100)]
    text = "gpu,model,tp,layer,per,count,time_us\n" + "\n".join(lines) + "\n"
    (folder / "x_profile_layers.csv").write_text(text)
    points = ("16,16,0,0", "64,64,0,0", "0,0,1,16", "0,0,4,64")
    lines = [f"G,a/M,3,{point},1e-9" for point in points]
    header = "gpu,model,tp,prefill_chunk,kv_prefill,n_decode,kv_decode,time_us\n"
    (folder / "x_profile_attention.csv").write_text(header + "\n".join(lines) + "\n")
    return folder


@pytest.mark.parametrize("is_measured", [False, True])
def test_tokens_pay_for_the_sums_of_every_layer(is_measured, tmp_path):
    graph = replace(SENDS, experts=())
    kernels = profile(tmp_path) if is_measured else None
    (costs,), source = step_costs("a/M", [graph], CLUSTER, 3, "bfloat16", kernels)
    sums_s = 2 * ring_s(4, 3, 6 * 500_000) + 5 * ring_s(4, 3, 6 * 1_000_000)
    assert costs.tokens_s(6) == pytest.approx(sums_s, rel=1e-6)
    assert ("measured on G" if is_measured else "predicted from the description of G") in source.text


def test_last_tokens_pay_for_the_scores_that_are_put_together():
    (costs,), _ = step_costs("M", [SENDS], CLUSTER, 3, "bfloat16")
    assert costs.sequences_s(5) == pytest.approx(4 * ring_s(2, 3, 5 * 3_000_000))


def test_a_stage_pays_for_its_send_and_the_last_one_has_none():
    graphs = [SENDS, SENDS, SENDS]
    (first, second, last), _ = step_costs("M", graphs, CLUSTER, 2, "bfloat16")
    assert first is second
    send_s = 1e-6 + 2 * 9 * 700_000 / 1e11
    assert first.tokens_s(9) - last.tokens_s(9) == pytest.approx(send_s)
    assert last.tokens_s(9) == pytest.approx(2 * ring_s(2, 2, 9 * 500_000) + 5 * ring_s(2, 2, 9 * 1_000_000))


def test_tokens_of_all_ranks_go_to_their_experts_and_back():
    (alone,), _ = step_costs("M", [SENDS], CLUSTER, 3, "bfloat16")
    (both,), _ = step_costs("M", [SENDS], CLUSTER, 3, "bfloat16", data_parallel=2)
    # Two exchanges in each of three layers, among all six devices.
    assert both.experts_s(8) - alone.experts_s(8) == pytest.approx(6 * ring_s(5, 6, 8 * 700_000))
    assert both.tokens_s(8) == alone.tokens_s(8)


def test_a_folder_that_is_not_there_and_two_of_one_kind_are_refused(tmp_path):
    with pytest.raises(ServeError, match=r"nowhere is no folder; give one with measured times"):
        step_costs("M", [SENDS], CLUSTER, 3, "bfloat16", tmp_path / "nowhere")
    folder = profile(tmp_path)
    with pytest.raises(ServeError, match="two folders of the same kind"):
        step_costs("M", [SENDS], CLUSTER, 3, "bfloat16", type(folder)(f"{folder},{folder}"))


# Rates of the device: 0.25 TB/s of its memory, and of 16 bits 2 Tflop/s.


@pytest.mark.parametrize(
    ("weights", "num_rows", "product", "work_s"),
    [
        # Few rows: the weights are read. Of 8 bits they take half, and the rows are brought to 8 bits by a kernel.
        ("bfloat16", 3, Product(400, 5000), (2 * 400 * 5000 + 3 * 5400 * 2) / 0.25e12),
        ("float8", 3, Product(400, 5000), (400 * 5000 + 3 * 5400 * 2 + 3 * 400 * 3) / 0.25e12 + GAP_S + MEMORY_S),
        # Many rows: they are multiplied.
        ("bfloat16", 3000, Product(2000, 1000), 2 * 3000 * 2000 * 1000 / 2e12),
        ("float8", 3000, Product(2000, 1000),
         2 * 3000 * 2000 * 1000 / 4e12 + 3000 * 2000 * 3 / 0.25e12 + GAP_S + MEMORY_S),
    ],
)  # fmt: skip
def test_a_product_takes_the_longer_of_reading_and_computing(weights, num_rows, product, work_s):
    kernels = PredictedKernels(CLUSTER, 1, weights, {"bfloat16": 2.0, "float8": 1.0}[weights])
    assert kernels.product_s(num_rows, product) == pytest.approx(work_s + GAP_S + MEMORY_S + RAMP_S)


def test_experts_read_the_weights_of_those_that_are_active():
    experts = Experts(num_experts=12, num_used=3, hidden=400, width=500, is_gated=True, num_devices=2)
    # Of 5 tokens on 2 devices: 7.5 rows each; an expert is missed by all with probability (9 / 12) ** 5.
    active, rows = 12 * (1 - 0.75**5) / 2, 7.5
    into_s = (active * 400 * 1000 * 2 + rows * 1400 * 2) / 0.25e12
    out_s = (active * 500 * 400 * 2 + rows * 900 * 2) / 0.25e12
    found = PredictedKernels(CLUSTER, 1).experts_s(5, experts)
    assert found == pytest.approx(into_s + out_s + 2 * (GAP_S + MEMORY_S + RAMP_S))


def kept_s(num_tokens: int, cached: int, cache_bytes: int) -> float:
    """A kernel reads keys and values of 16 bits and writes them into the cache."""
    return num_tokens * cached * (2 + cache_bytes) / 0.25e12 + GAP_S + MEMORY_S


@pytest.mark.parametrize(
    ("attention", "cached", "seen", "queries"),
    [
        (Attention(6, 2, 8), 32, 100, 48),
        (Attention(6, 2, 8, window=30), 32, 30, 48),
        (Attention(6, 6, 8, latent=40, rotary=10), 50, 100, 6 * 45),
    ],
)
def test_decodes_read_what_they_see_of_the_cache(attention, cached, seen, queries):
    kernels = PredictedKernels(CLUSTER, 1, cache_bytes=1.0)
    moved = 7 * seen * cached + 2 * 7 * queries * 2
    expected_s = moved / 0.25e12 + 2 * (GAP_S + MEMORY_S) + kept_s(7, cached, 1)
    assert kernels.decode_attention_s(attention, 7, np.array([100.0])) == pytest.approx([expected_s])


def test_chunks_attend_to_what_is_before_them_and_to_half_of_themselves():
    kernels, attention = PredictedKernels(CLUSTER, 1, cache_bytes=1.0), Attention(6, 2, 8)
    # Two chunks of a token, after 100,000 and 50,000, which are read for longer than they are computed with.
    moved = 2 * 2 * 48 * 2 + 150_002 * 32
    expected_s = moved / 0.25e12 + GAP_S + MEMORY_S + kept_s(2, 32, 1)
    chunks = [(1, 100_000), (1, 50_000)]
    assert kernels.prompt_attention_s(attention, chunks) == pytest.approx(expected_s)
    # Long ones are bound by computing: 4 flops for each pair, head and element, at the rate of so many.
    flops = 4 * 6 * 8 * (3000 * 5000 + 3000 * 3001 / 2)
    expected_s = (flops + 3e6) / 2e12 + GAP_S + kept_s(3000, 32, 1)
    assert kernels.prompt_attention_s(attention, [(3000, 5000)]) == pytest.approx(expected_s)
    # Backward, five products of that size in place of two.
    expected_s = (2.5 * flops + 3e6) / 2e12 + GAP_S
    assert kernels.backward_attention_s(attention, [(3000, 5000)]) == pytest.approx(expected_s)
