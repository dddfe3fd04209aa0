"""Reducing activation recomputation (arXiv 2205.05198): table 2, and the collectives of section 4.2.2."""

import pytest
from counting import collectives, planned, small_gpt

from trainyard.job.lower.axes import shard_whole
from trainyard.job.lower.resolve import resolve
from trainyard.job.tabulate import layer_table

ROWS, CONTEXT, HIDDEN, HEADS = 2, 128, 256, 8
SBH = CONTEXT * ROWS * HIDDEN
AS2B = HEADS * CONTEXT * CONTEXT * ROWS
MEGATRON = "megatron(tensor={t}, pipeline=1, data=1, microbatch_rows=2)"

# Table 2 of the paper, bytes per layer. Ours keeps no dropout masks, which are functions of the position: of the
# paper's 34 sbh two masks of sbh bytes, and of its 5 a s^2 b one of a s^2 b. Masks are shared out as what they mask.
CLAIMS = {
    "none": ("", lambda t: 32 * SBH + 4 * AS2B),
    "tensor": (MEGATRON, lambda t: 8 * SBH + 24 * SBH / t + 4 * AS2B / t),
    "tensor and sequence": (MEGATRON + " + sequence_parallel", lambda t: 32 * SBH / t + 4 * AS2B / t),
    "tensor and selective": (MEGATRON + " + selective_recompute", lambda t: 8 * SBH + 24 * SBH / t),
    "all three": (MEGATRON + " + sequence_parallel + selective_recompute", lambda t: 32 * SBH / t),
}


def _per_layer(strategies: str) -> float:
    """Bytes that one more layer keeps on a rank."""
    kept = []
    for layers in (1, 3):
        model = small_gpt(layers, ROWS, CONTEXT, HIDDEN, HEADS)
        plan, lowered = planned(model, strategies, "1x4xA100-80G", "bfloat16")
        named = resolve(lowered.program, plan)
        layers = layer_table(shard_whole(lowered.program, named), lambda node: 0.0, named.recomputed)
        kept.append(layers.kept_bytes.sum())
    return (kept[1] - kept[0]) / 2


@pytest.mark.parametrize("t", [2, 4])
@pytest.mark.parametrize("name", CLAIMS)
def test_table_2(name: str, t: int) -> None:
    strategies, claimed = CLAIMS[name]
    # What is beside the table: statistics of norms (a few bytes per token) and one causal mask (s^2 bytes).
    beside = CONTEXT * CONTEXT + 4 * 8 * CONTEXT * ROWS
    ours = _per_layer(strategies.format(t=t))
    assert claimed(t) <= ours <= claimed(t) + beside


@pytest.mark.parametrize("layers", [1, 3])
def test_reduce_scatters_and_all_gathers(layers: int) -> None:
    strategies = MEGATRON.format(t=2) + " + sequence_parallel"
    _, lowered = planned(small_gpt(layers, ROWS, CONTEXT, HIDDEN, HEADS), strategies, "1x2xA100-80G")
    found = collectives(lowered, "tensor", at_least=SBH // 2)
    # Section 4.2.2: g-bar and g of attention and MLP; one more each for the embedding and the logits.
    assert found["reduce_scatter", "F"] == found["all_gather", "F"] == 2 * layers + 1
    assert found["reduce_scatter", "B"] == 2 * layers + 1
    # Backward: the conjugates, and the inputs of the column products gathered again, which are not kept.
    assert found["all_gather", "B"] == 4 * layers + 3
    assert found["all_reduce", "F"] == found["all_reduce", "B"] == 0


def test_the_same_bytes_travel_forward_as_with_tensor_parallelism_alone() -> None:
    # Section 4.2.2: a ring all-reduce is a reduce-scatter and an all-gather.
    pairs = []
    for strategies in (MEGATRON.format(t=2), MEGATRON.format(t=2) + " + sequence_parallel"):
        _, lowered = planned(small_gpt(2, ROWS, CONTEXT, HIDDEN, HEADS), strategies, "1x2xA100-80G")
        found = collectives(lowered, "tensor", at_least=SBH // 2)
        pairs.append(2 * found["all_reduce", "F"] + found["reduce_scatter", "F"] + found["all_gather", "F"])
    assert pairs[0] == pairs[1]


def test_selective_recomputes_cheap_ops_only() -> None:
    # Section 5: 2.7% more flops for GPT-3; the products of the core are 2 a s^2 b (h / a) of a layer's forward pass.
    plan, lowered = planned(small_gpt(2, ROWS, CONTEXT, HIDDEN, HEADS), "selective_recompute", "1x1xA100-80G")
    again = lowered.program.addresses.names(plan.recomputed)
    products = [name for name in sorted(again) if name.rpartition(":")[2].startswith(("mm", "addmm", "bmm"))]
    assert products == ["blocks.0.attention:bmm", "blocks.1.attention:bmm"], (
        "the scores, and no other product"
    )
