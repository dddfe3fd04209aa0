"""Milliseconds of what a serving engine computes on the CPU besides its layers: attention over a cache, and sampling.

Run `python benchmarks/serve_kernels.py`. PyTorch's own kernels are measured beside ours. All take turns; the output is
medians of the processor time of one thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from statistics import median

import numpy as np
import torch
from record import write_record
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from trainyard.serve.run.cpu_attention import CpuAttention
from trainyard.serve.run.paged_attention import attention_batch
from trainyard.serve.run.sampling import SamplingParams, SamplingRow, sample

_REPEATS = 21
_HEADS, _HEAD_DIM, _BLOCK_TOKENS = 8, 64, 16
_CACHE_BYTES = 96 * 2**20
"""More than a processor keeps near itself: layers come between one step's use of a cache and the next one's."""
_ROWS, _VOCABULARY = 32, 32_000
SAMPLING = {
    "greedy": SamplingParams(temperature=0.0),
    "temperature": SamplingParams(),
    "top_p": SamplingParams(top_p=0.95),
    "top_k": SamplingParams(top_k=50),
    "penalties": SamplingParams(repetition_penalty=1.1, presence_penalty=0.5),
}


def medians_ms(ways: Mapping[str, Callable[[], object]]) -> dict[str, float]:
    """Of each way, after it has been compiled; what it reads is in memory, not in the processor's caches."""
    other = torch.ones(_CACHE_BYTES // 4)
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for repeat in range(_REPEATS + 1):
        for name, way in ways.items():
            other.sum()
            began = time.process_time()
            way()
            if repeat:
                taken[name].append(time.process_time() - began)
    return {f"{name}_ms": 1e3 * median(each) for name, each in taken.items()}


def attention(
    sequences: int, before: int, queries: int, kv_heads: int, dtype: torch.dtype
) -> dict[str, float]:
    """Of sequences of one length, whose last tokens are the queries."""
    length = before + queries
    most_blocks = -(-length // _BLOCK_TOKENS)
    num_blocks = sequences * most_blocks
    keys, values = torch.randn(2, sequences, length, kv_heads, _HEAD_DIM)
    query = torch.randn(sequences, queries, _HEADS, _HEAD_DIM)
    paged = CpuAttention()
    cache = paged.new_cache(num_blocks, kv_heads, _HEAD_DIM, _BLOCK_TOKENS, dtype)
    table = torch.randperm(num_blocks).view(sequences, most_blocks)
    counts = np.arange(sequences + 1)
    whole = attention_batch(counts * length, np.zeros(sequences), table, num_blocks, _BLOCK_TOKENS)
    paged.write(keys.flatten(0, 1), values.flatten(0, 1), cache, whole)
    positions = np.full(sequences, before)
    batch = attention_batch(counts * queries, positions, table, num_blocks, _BLOCK_TOKENS)
    flat = query.flatten(0, 1)
    mask = torch.arange(length) <= before + torch.arange(queries)[:, None]

    def dense(key: Tensor, value: Tensor) -> Tensor:
        given = {"is_causal": True} if not before else {"attn_mask": mask} if queries > 1 else {}
        return scaled_dot_product_attention(query.transpose(1, 2), key, value, enable_gqa=True, **given)

    def gathered() -> Tensor:
        key = cache.keys[table].permute(0, 2, 1, 4, 3).flatten(2, 3)[:, :, :length]
        value = cache.values[table].transpose(1, 2).flatten(2, 3)[:, :, :length]
        return dense(key.float(), value.float())

    heads = [each.transpose(1, 2).contiguous() for each in (keys, values)]
    torch.testing.assert_close(
        paged.attend(flat, cache, batch).view(query.shape), gathered().transpose(1, 2), atol=1e-5, rtol=1e-4
    )
    found = medians_ms(
        {"paged": lambda: paged.attend(flat, cache, batch), "dense_sdpa": lambda: dense(*heads)}
    )
    # By itself: it gives much memory back to the system, for which whatever allocates next would pay.
    return found | medians_ms({"gather_and_sdpa": gathered})


def sampling(spread: float) -> dict[str, float]:
    """Of rows whose logits have this standard deviation."""
    logits = spread * torch.randn(_ROWS, _VOCABULARY)
    ways: dict[str, Callable[[], object]] = {}
    for name, params in SAMPLING.items():
        tokens = list(range(100))
        rows = [SamplingRow(params, seed, tokens, tokens) for seed in range(_ROWS)]
        ways[name] = partial(sample, logits.clone(), rows)
    ways["torch_argmax"] = lambda: logits.argmax(-1)
    ways["torch_sort"] = lambda: logits.softmax(-1).sort(descending=True)
    ways["torch_topk"] = lambda: logits.topk(50)
    return medians_ms(ways)


def main() -> None:
    """Measure, print and record."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    found: dict[str, dict[str, float]] = {}
    for kv_heads in (_HEADS, 2):
        for dtype in (torch.float32, torch.bfloat16):
            what = f"{kv_heads} kv heads, {str(dtype).removeprefix('torch.')}"
            found[f"decode 32 x 192, {what}"] = attention(32, 191, 1, kv_heads, dtype)
            for prompt in (128, 512, 2000):
                found[f"prompt of {prompt}, {what}"] = attention(1, 0, prompt, kv_heads, dtype)
            found[f"256 after 1024, {what}"] = attention(1, 1024, 256, kv_heads, dtype)
    for spread in (1.0, 4.0):
        found[f"sample {_ROWS} x {_VOCABULARY}, spread {spread:g}"] = sampling(spread)
    for name, values in found.items():
        print(f"{name}: " + ", ".join(f"{what} {value:.3f}" for what, value in values.items()))
    print(write_record("serve_kernels", found))


if __name__ == "__main__":
    main()
