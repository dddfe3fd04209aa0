"""Attention by torch alone, as on a GPU: the numbers of the kernel of the CPU, and the tokens of `generate`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tests.serve.run.exact_runs import RUNS, check_exact, served
from tests.serve.run.tiny_models import made

from trainyard.serve.run.causal_model import CausalModel
from trainyard.serve.run.paged_attention import attend, attention_batch, new_cache, write_cache
from trainyard.serve.run.torch_attention import attend_by_torch, write_by_torch


@pytest.mark.parametrize("window", [None, 1, 7])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_numbers_are_those_of_the_kernel(dtype: torch.dtype, window: int | None) -> None:
    """Decodes, a whole prompt and a chunk of one, whose blocks lie anywhere."""
    torch.manual_seed(0)
    lengths, before, size = np.array([1, 9, 1, 20]), np.array([13, 0, 40, 17]), 8
    tables = np.random.default_rng(0).permutation(40)[:28].reshape(4, 7)
    tables[1, 2:] = -7  # behind its last block
    batch = attention_batch(np.concatenate(([0], lengths.cumsum())), before, tables, 40, size)
    num, heads, kv_heads, width = int(lengths.sum()), 6, 2, 16
    cache = new_cache(40, kv_heads, width, size, dtype)
    cached = [(tables[i], int(before[i])) for i in range(4)]
    for part, is_key in zip(cache, (True, False), strict=True):
        part.fill_(float("nan"))  # as what nobody wrote, or another request did
        for table, num_tokens in cached:
            for place in range(num_tokens):
                block = part[table[place // size]]
                row = torch.randn(kv_heads, width).to(dtype)
                (block[:, :, place % size] if is_key else block[:, place % size]).copy_(row)
    other = tuple(part.clone() for part in cache)
    query, key, value = (torch.randn(num, each, width, dtype=dtype) for each in (heads, kv_heads, kv_heads))
    write_cache(key, value, batch.slots, *cache)
    write_by_torch(key, value, batch.slots, *other)
    for pair in zip(cache, other, strict=True):
        torch.testing.assert_close(*pair, rtol=0, atol=0, equal_nan=True)
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    wanted, found = (each(query, *cache, batch, None, window) for each in (attend, attend_by_torch))
    torch.testing.assert_close(found, wanted, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("run", ["chunks", "swapping"])
@pytest.mark.parametrize("name", ["llama", "gpt2", "mistral with a window"])
def test_tokens_are_those_of_generate(name: str, run: str) -> None:
    found, _ = served(CausalModel(made(name), name, by_torch=True), *RUNS[run])
    check_exact(name, found)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU that torch knows")
@pytest.mark.parametrize("name", ["llama", "gpt2", "mistral with a window"])
def test_tokens_of_a_gpu_are_those_of_generate(name: str) -> None:
    model: Any = made(name)
    found, _ = served(CausalModel(model.to("cuda"), name), *RUNS["swapping"])
    check_exact(name, found)
