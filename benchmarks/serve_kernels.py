"""Milliseconds of what a serving engine computes on the CPU besides its layers: attention over a cache, and sampling.

Run `python benchmarks/serve_kernels.py`. PyTorch's own kernels are measured beside ours. All take turns; the output is
medians of the processor time of one thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from statistics import median

import numpy as np
import torch
from record import finish, parser
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from trainyard.serve.run.cpu_attention import CpuAttention
from trainyard.serve.run.paged_attention import attention_batch
from trainyard.serve.run.sampling import SamplingParams, SamplingRow, sample

_HEADS, _HEAD_DIM, _BLOCK_TOKENS = 8, 64, 16
_CACHE_BYTES = 96 * 2**20
"""More than a processor keeps near itself: layers come between one step's use of a cache and the next one's."""


@dataclass(frozen=True)
class Sizes:
    """How much is measured.

    Attributes
    ----------
    repeats : calls of each way.
    sequences, before : of decodes, and the tokens before each.
    prompts : tokens of prompts.
    chunk, before_chunk : tokens of a part of a prompt, and those before it.
    rows, vocabulary : of logits.
    cache_bytes : read between calls.
    """

    repeats: int = 21
    sequences: int = 32
    before: int = 191
    prompts: tuple[int, ...] = (128, 512, 2000)
    chunk: int = 256
    before_chunk: int = 1024
    rows: int = 32
    vocabulary: int = 32_000
    cache_bytes: int = _CACHE_BYTES


_SMALLEST = Sizes(1, 2, 17, (16,), 4, 20, 2, 500, 4)
SAMPLING = {
    "greedy": SamplingParams(temperature=0.0),
    "temperature": SamplingParams(),
    "top_p": SamplingParams(top_p=0.95),
    "top_k": SamplingParams(top_k=50),
    "penalties": SamplingParams(repetition_penalty=1.1, presence_penalty=0.5),
}


def medians_ms(ways: Mapping[str, Callable[[], object]], sizes: Sizes) -> dict[str, float]:
    """Of each way, after it has been compiled; what it reads is in memory, not in the processor's caches."""
    other = torch.ones(sizes.cache_bytes // 4)
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for repeat in range(sizes.repeats + 1):
        for name, way in ways.items():
            other.sum()
            began = time.process_time()
            way()
            if repeat:
                taken[name].append(time.process_time() - began)
    return {f"{name}_ms": 1e3 * median(each) for name, each in taken.items()}


def attention(
    sizes: Sizes, sequences: int, before: int, queries: int, kv_heads: int, dtype: torch.dtype
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
        {"paged": lambda: paged.attend(flat, cache, batch), "dense_sdpa": lambda: dense(*heads)}, sizes
    )
    # By itself: it gives much memory back to the system, for which whatever allocates next would pay.
    return found | medians_ms({"gather_and_sdpa": gathered}, sizes)


def sampling(sizes: Sizes, spread: float) -> dict[str, float]:
    """Of rows whose logits have this standard deviation."""
    logits = spread * torch.randn(sizes.rows, sizes.vocabulary)
    ways: dict[str, Callable[[], object]] = {}
    for name, params in SAMPLING.items():
        tokens = list(range(100))
        rows = [SamplingRow(params, seed, tokens, tokens) for seed in range(sizes.rows)]
        ways[name] = partial(sample, logits.clone(), rows)
    ways["torch_argmax"] = lambda: logits.argmax(-1)
    ways["torch_sort"] = lambda: logits.softmax(-1).sort(descending=True)
    ways["torch_topk"] = lambda: logits.topk(50)
    return medians_ms(ways, sizes)


def main() -> None:
    """Measure, print and record."""
    smallest = parser(__doc__).parse_args().smallest
    sizes = _SMALLEST if smallest else Sizes()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    found: dict[str, dict[str, float]] = {}
    for kv_heads in (_HEADS, 2):
        for dtype in (torch.float32, torch.bfloat16):
            what = f"{kv_heads} kv heads, {str(dtype).removeprefix('torch.')}"
            decode = f"decode {sizes.sequences} x {sizes.before + 1}, {what}"
            found[decode] = attention(sizes, sizes.sequences, sizes.before, 1, kv_heads, dtype)
            for prompt in sizes.prompts:
                found[f"prompt of {prompt}, {what}"] = attention(sizes, 1, 0, prompt, kv_heads, dtype)
            chunk = f"{sizes.chunk} after {sizes.before_chunk}, {what}"
            found[chunk] = attention(sizes, 1, sizes.before_chunk, sizes.chunk, kv_heads, dtype)
    for spread in (1.0, 4.0):
        found[f"sample {sizes.rows} x {sizes.vocabulary}, spread {spread:g}"] = sampling(sizes, spread)
    for name, values in found.items():
        print(f"{name}: " + ", ".join(f"{what} {value:.3f}" for what, value in values.items()))
    finish("serve_kernels", found, smallest)


if __name__ == "__main__":
    main()
