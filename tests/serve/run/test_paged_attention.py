"""The attention of the CPU beside PyTorch's own, and batches of every attention."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.serve.run.attention_checks import SEQUENCES, check, chunks

from trainyard.serve.errors import ServeError
from trainyard.serve.run.cpu_attention import CpuAttention
from trainyard.serve.run.flex_attention import FlexAttention
from trainyard.serve.run.paged_attention import attention_batch
from trainyard.serve.run.torch_attention import TorchAttention

LAYOUTS = ((1, 1, 16, 16), (2, 3, 64, 16), (4, 2, 128, 5), (5, 1, 24, 7), (1, 4, 40, 32), (8, 1, 16, 1))
"""Query heads per key, heads of keys, head_dim, block_tokens: few, as each is compiled."""


ATTENTION = CpuAttention()
CPU = torch.device("cpu")


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("window", [None, 1, 9, chunks(13)], ids=["all", "1", "9", "chunks"])
def test_decodes_and_parts_of_prompts_are_as_of_pytorch(layout, window):
    check(ATTENTION, layout, SEQUENCES, window=window)


@settings(max_examples=30, deadline=None, derandomize=True)
@given(
    st.lists(st.tuples(st.integers(0, 90), st.integers(0, 30)), min_size=1, max_size=5).filter(
        lambda each: sum(queries for _, queries in each) > 0
    ),
    st.sampled_from(LAYOUTS),
    st.one_of(st.none(), st.integers(1, 130), st.integers(1, 50).map(chunks)),
    st.integers(0, 1000),
)
def test_any_lengths(sequences, layout, window, seed):
    check(ATTENTION, layout, sequences, window=window, seed=seed)


def test_scale_and_bfloat16_caches():
    check(ATTENTION, LAYOUTS[1], [(30, 1), (0, 9)], scale=0.4)
    check(ATTENTION, LAYOUTS[1], [(30, 1), (0, 9)], dtype=torch.bfloat16)
    check(ATTENTION, LAYOUTS[2], [(30, 1), (2, 9)], dtype=torch.bfloat16, window=6)


BOUNDED_AND_SUNK = [(30, 1), (0, 9), (3, 4), (0, 1)]


@pytest.mark.parametrize("window", [None, 5])
@pytest.mark.parametrize("softcap", [None, 0.5, 30.0])
@pytest.mark.parametrize("has_sinks", [False, True])
def test_bounded_scores_and_sinks(window, softcap, has_sinks):
    check(ATTENTION, LAYOUTS[1], BOUNDED_AND_SUNK, window=window, softcap=softcap, has_sinks=has_sinks)


def test_bounded_scores_are_scaled_before():
    check(ATTENTION, LAYOUTS[1], BOUNDED_AND_SUNK, softcap=2.0, scale=0.7, has_sinks=True)
    check(ATTENTION, LAYOUTS[1], BOUNDED_AND_SUNK, softcap=50.0, scale=4.0, has_sinks=True, tolerance=2e-5)


@pytest.mark.parametrize("value_dim", [8, 24, 40])
def test_values_of_another_size_than_keys(value_dim):
    check(ATTENTION, LAYOUTS[3], SEQUENCES, value_dim=value_dim, window=9)
    check(ATTENTION, (1, 3, 16, 4), BOUNDED_AND_SUNK, value_dim=value_dim, dtype=torch.bfloat16)


def test_a_high_sink_takes_nearly_all():
    cache = ATTENTION.new_cache(2, 1, 16, 16)
    cache.values.fill_(1.0)
    batch = attention_batch([0, 5], [0], [[1]], 2, 16)
    found = ATTENTION.attend(torch.zeros(5, 2, 16), cache, batch, sinks=torch.tensor([200.0, -200.0]))
    assert (found[:, 0].abs() < 1e-30).all()
    assert (found[:, 1] == 1.0).all()


def test_large_scores_do_not_overflow():
    check(ATTENTION, LAYOUTS[1], [(30, 1), (0, 9)], scale=40.0)


def test_a_query_of_bfloat16_is_answered_in_it():
    cache = ATTENTION.new_cache(2, 1, 16, 16, torch.bfloat16)
    batch = attention_batch([0, 1], [3], [[1]], 2, 16)
    cache.values[1] = 2.0
    found = ATTENTION.attend(torch.ones(1, 1, 16, dtype=torch.bfloat16), cache, batch)
    assert found.dtype == torch.bfloat16
    assert (found == 2.0).all()


def test_slots_are_blocks_and_offsets():
    batch = attention_batch([0, 1, 4], [5, 2], [[3, 1, -1], [0, 2, -1]], 4, 4)
    assert batch.slots.tolist() == [5, 2, 3, 8]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (([0, 1], [4], [[0]], 3, 4), "sequence 0 needs 2 blocks; its block table has 1"),
        (([0, 1], [4], [[0, 3]], 3, 4), "block 1 of sequence 0 is 3; allowed is 0 to 2"),
        (([0, 1], [4, 4], [[0, 1]], 3, 4), "positions"),
        (([0, 2, 1], [0, 0], [[0], [1]], 3, 4), "not decrease"),
    ],
)
def test_batches_that_cannot_be(arguments, said):
    with pytest.raises(ServeError, match=said):
        attention_batch(*arguments)


@pytest.mark.parametrize(
    "attention", [CpuAttention(), TorchAttention(CPU), FlexAttention(CPU)], ids=["cpu", "torch", "flex"]
)
def test_tensors_that_do_not_fit(attention):
    cache = attention.new_cache(2, 2, 16, 4)
    batch = attention_batch([0, 1], [3], [[1]], 2, 4)
    with pytest.raises(ServeError, match="heads is a multiple of kv_heads"):
        attention.attend(torch.ones(1, 3, 16), cache, batch)
    with pytest.raises(ServeError, match="allowed is \\(1, heads, 16\\)"):
        attention.attend(torch.ones(2, 2, 16), cache, batch)
    with pytest.raises(ServeError, match="window is 0"):
        attention.attend(torch.ones(1, 2, 16), cache, batch, window=0)
    with pytest.raises(ServeError, match="softcap is 0"):
        attention.attend(torch.ones(1, 2, 16), cache, batch, softcap=0.0)
    with pytest.raises(ServeError, match=r"sinks have shape \(3,\); allowed is one for each of 2 heads"):
        attention.attend(torch.ones(1, 2, 16), cache, batch, sinks=torch.ones(3))
    with pytest.raises(ServeError, match=r"the cache takes \(1, 2, 16\) and \(1, 2, 16\)"):
        attention.write(torch.ones(1, 2, 16), torch.ones(1, 2, 8), cache, batch)
    with pytest.raises(ServeError, match="2 blocks of 4 tokens; the batch is for 3 of 4"):
        attention.write(
            torch.ones(1, 2, 16), torch.ones(1, 2, 16), cache, attention_batch([0, 1], [3], [[2]], 3, 4)
        )
    with pytest.raises(ServeError, match="float16"):
        attention.new_cache(2, 2, 16, 4, torch.float16)
