"""Attention over a paged cache beside PyTorch's own, sequence by sequence."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from transformers.masking_utils import chunked_causal_mask_function

from trainyard.serve.run.attention_window import MaskWindow, Window
from trainyard.serve.run.paged_attention import LayerCache, PagedAttention, attention_batch

SEQUENCES = ((0, 1), (20, 1), (0, 37), (11, 6), (3, 4), (64, 3), (150, 1), (16, 16), (5, 0))
"""Tokens before, and queries: decodes, whole prompts and parts of prompts."""

Layout = tuple[int, int, int, int]
"""Query heads per key, heads of keys, head_dim, block_tokens."""


def chunks(tokens: int) -> MaskWindow:
    """Attention in chunks, by transformers' mask."""
    sees = chunked_causal_mask_function(tokens, torch.zeros(1, dtype=torch.int64))
    return MaskWindow(sees, 1000, torch.device("cpu"))


def expected(query, keys, values, before, scale, window, softcap, sinks):
    """Attention of the last tokens of one sequence: (queries, heads, dim) of (tokens, kv_heads, dim), in float64."""
    ends = before + torch.arange(len(query), device=query.device)[:, None]
    token = torch.arange(len(keys), device=query.device)[None]
    if isinstance(window, MaskWindow):
        window = torch.from_numpy(window(ends[:, 0].cpu().numpy())).to(query.device)[:, None]
    seen = (token <= ends) & (token > ends - (len(keys) if window is None else window))
    group = query.shape[1] // keys.shape[1]
    q, k, v = (each.transpose(0, 1).double() for each in (query, keys, values))
    k, v = (each.repeat_interleave(group, 0) for each in (k, v))
    scores = q @ k.transpose(1, 2) * (scale or q.shape[2] ** -0.5)
    if softcap is not None:
        scores = softcap * (scores / softcap).tanh()
    scores = scores.masked_fill(~seen, -torch.inf)
    if sinks is not None:
        scores = torch.cat((scores, sinks.double()[:, None, None].expand(-1, len(query), 1)), -1)
    weights = scores.softmax(-1)[:, :, : len(keys)]
    return (weights @ v).transpose(0, 1).to(query.dtype)


def check(
    attention: PagedAttention,
    layout: Layout,
    sequences: Sequence[tuple[int, int]],
    *,
    window: Window = None,
    scale: float | None = None,
    softcap: float | None = None,
    has_sinks: bool = False,
    value_dim: int | None = None,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
    unwritten: float = torch.nan,
    tolerance: float = 3e-6,
    device: str = "cpu",
) -> None:
    """Sequences are (tokens before, queries), all written into one cache.

    Parameters
    ----------
    unwritten : value where nothing is written; the keys there are no numbers.
    tolerance : of results that are about 1.
    """
    group, num_kv_heads, head_dim, block_tokens = layout
    value_dim = value_dim or head_dim
    generator = torch.Generator().manual_seed(seed)
    before = np.array([each[0] for each in sequences])
    lengths = np.array([each[1] for each in sequences])
    used = -(-(before + lengths) // block_tokens)
    num_blocks = int(used.sum()) + 2
    order = iter(torch.randperm(num_blocks, generator=generator).tolist())
    tables = np.full((len(sequences), used.max() + 1), -7)
    for sequence, count in enumerate(used):
        tables[sequence, :count] = [next(order) for _ in range(count)]
    cache = attention.new_cache(
        num_blocks, num_kv_heads, head_dim, block_tokens, dtype, torch.device(device), value_dim
    )
    cache.keys.fill_(torch.nan)
    cache.values.fill_(unwritten)
    keys, values = [], []
    for table, count in zip(tables, before + lengths, strict=True):
        for each, width in ((keys, head_dim), (values, value_dim)):
            drawn = torch.randn(count, num_kv_heads, width, generator=generator)
            each.append(drawn.to(device, dtype))
        written = attention_batch([0, count], [0], [table], num_blocks, block_tokens)
        attention.write(keys[-1], values[-1], cache, written)
    starts = np.concatenate([[0], np.cumsum(lengths)])
    batch = attention_batch(starts, before, tables, num_blocks, block_tokens)
    query = torch.randn(batch.num_tokens, group * num_kv_heads, head_dim, generator=generator).to(device)
    sinks = torch.randn(query.shape[1], generator=generator).to(device) if has_sinks else None
    found = attention.attend(query, cache, batch, scale, window, softcap, sinks)
    assert found.dtype == query.dtype
    for i in range(len(sequences)):
        part = slice(starts[i], starts[i + 1])
        wanted = expected(query[part], keys[i], values[i], int(before[i]), scale, window, softcap, sinks)
        torch.testing.assert_close(found[part], wanted, atol=tolerance, rtol=3 * tolerance)


def copied(cache: LayerCache, attention: PagedAttention) -> LayerCache:
    """What the CPU's attention has cached, in the layout of one of torch's."""
    num_blocks, num_kv_heads, block_tokens, head_dim = cache.values.shape
    found = attention.new_cache(num_blocks, num_kv_heads, head_dim, block_tokens, cache.values.dtype)
    found.keys.copy_(cache.keys.transpose(2, 3))
    found.values.copy_(cache.values)
    return found
