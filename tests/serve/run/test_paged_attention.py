"""Paged attention beside PyTorch's own, sequence by sequence."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import scaled_dot_product_attention

from trainyard.serve.errors import ServeError
from trainyard.serve.run.paged_attention import attend, attention_batch, new_cache, write_cache

LAYOUTS = ((1, 1, 16, 16), (2, 3, 64, 16), (4, 2, 128, 5), (5, 1, 24, 7), (1, 4, 40, 32), (8, 1, 16, 1))
"""Query heads per key, heads of keys, head_dim, block_tokens: few, as each is compiled."""


def expected(query, keys, values, before, scale, window):
    """Attention of the last tokens of one sequence: (queries, heads, dim) of (tokens, kv_heads, dim)."""
    ends = before + torch.arange(len(query))[:, None]
    token = torch.arange(len(keys))[None]
    seen = (token <= ends) & (token > ends - (window or len(keys)))
    group = query.shape[1] // keys.shape[1]
    q, k, v = (each.transpose(0, 1) for each in (query, keys, values))
    k, v = (each.repeat_interleave(group, 0) for each in (k, v))
    return scaled_dot_product_attention(q, k, v, attn_mask=seen, scale=scale).transpose(0, 1)


def check(layout, sequences, *, window=None, scale=None, dtype=torch.float32, seed=0):
    """Sequences are (tokens before, queries), all written into one cache whose free places hold no numbers."""
    group, num_kv_heads, head_dim, block_tokens = layout
    generator = torch.Generator().manual_seed(seed)
    before = np.array([each[0] for each in sequences])
    lengths = np.array([each[1] for each in sequences])
    used = -(-(before + lengths) // block_tokens)
    num_blocks = int(used.sum()) + 2
    order = iter(torch.randperm(num_blocks, generator=generator).tolist())
    tables = np.full((len(sequences), used.max() + 1), -7)
    for sequence, count in enumerate(used):
        tables[sequence, :count] = [next(order) for _ in range(count)]
    key_cache, value_cache = new_cache(num_blocks, num_kv_heads, head_dim, block_tokens, dtype)
    key_cache.fill_(torch.nan)
    value_cache.fill_(torch.nan)
    keys, values = [], []
    for table, count in zip(tables, before + lengths, strict=True):
        written = attention_batch([0, count], [0], [table], num_blocks, block_tokens)
        keys.append(torch.randn(count, num_kv_heads, head_dim, generator=generator))
        values.append(torch.randn(count, num_kv_heads, head_dim, generator=generator))
        write_cache(keys[-1], values[-1], written.slots, key_cache, value_cache)
    starts = np.concatenate([[0], np.cumsum(lengths)])
    batch = attention_batch(starts, before, tables, num_blocks, block_tokens)
    query = torch.randn(batch.num_tokens, group * num_kv_heads, head_dim, generator=generator)
    found = attend(query, key_cache, value_cache, batch, scale=scale, window=window)
    for i in range(len(sequences)):
        part = slice(starts[i], starts[i + 1])
        k, v = (each[i].to(dtype).float() for each in (keys, values))
        wanted = expected(query[part], k, v, int(before[i]), scale, window)
        torch.testing.assert_close(found[part], wanted, atol=3e-6, rtol=1e-5)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("window", [None, 1, 9])
def test_decodes_and_parts_of_prompts_are_as_of_pytorch(layout, window):
    sequences = [(0, 1), (20, 1), (0, 37), (11, 6), (3, 4), (64, 3), (150, 1), (16, 16), (5, 0)]
    check(layout, sequences, window=window)


@settings(max_examples=30, deadline=None, derandomize=True)
@given(
    st.lists(st.tuples(st.integers(0, 90), st.integers(0, 30)), min_size=1, max_size=5).filter(
        lambda each: sum(queries for _, queries in each) > 0
    ),
    st.sampled_from(LAYOUTS),
    st.one_of(st.none(), st.integers(1, 130)),
    st.integers(0, 1000),
)
def test_any_lengths(sequences, layout, window, seed):
    check(layout, sequences, window=window, seed=seed)


def test_scale_and_bfloat16_caches():
    check(LAYOUTS[1], [(30, 1), (0, 9)], scale=0.4)
    check(LAYOUTS[1], [(30, 1), (0, 9)], dtype=torch.bfloat16)
    check(LAYOUTS[2], [(30, 1), (2, 9)], dtype=torch.bfloat16, window=6)


def test_large_scores_do_not_overflow():
    check(LAYOUTS[1], [(30, 1), (0, 9)], scale=40.0)


def test_a_query_of_bfloat16_is_answered_in_it():
    keys, values = new_cache(2, 1, 16, 16, torch.bfloat16)
    batch = attention_batch([0, 1], [3], [[1]], 2, 16)
    values[1] = 2.0
    found = attend(torch.ones(1, 1, 16, dtype=torch.bfloat16), keys, values, batch)
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


def test_tensors_that_do_not_fit():
    keys, values = new_cache(2, 2, 16, 4)
    batch = attention_batch([0, 1], [3], [[1]], 2, 4)
    with pytest.raises(ServeError, match="heads is a multiple of kv_heads"):
        attend(torch.ones(1, 3, 16), keys, values, batch)
    with pytest.raises(ServeError, match="do not fit a batch"):
        attend(torch.ones(2, 2, 16), keys, values, batch)
    with pytest.raises(ServeError, match="window is 0"):
        attend(torch.ones(1, 2, 16), keys, values, batch, window=0)
    with pytest.raises(ServeError, match="allowed is 0 to 7"):
        write_cache(torch.ones(1, 2, 16), torch.ones(1, 2, 16), np.array([8]), keys, values)
    with pytest.raises(ServeError, match="float16"):
        new_cache(2, 2, 16, 4, torch.float16)
