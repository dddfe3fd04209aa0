"""Which attention a model is computed with."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from trainyard.serve.run.cpu_attention import CpuAttention
from trainyard.serve.run.flex_attention import FlexAttention, fits_flex_attention
from trainyard.serve.run.paged_attention import PagedAttention
from trainyard.serve.run.torch_attention import TorchAttention

__all__ = ["attention_for"]

_TRITON_CAPABILITY = (8, 0)
"""Of the first GPUs that compute with bfloat16."""


def attention_for(
    device: torch.device,
    head_dims: Iterable[int],
    num_blocks: int,
    block_tokens: int,
    dtype: torch.dtype,
) -> PagedAttention:
    """Choose the attention of a model: kernels of our own on the CPU, FlexAttention on a GPU, torch's elsewhere.

    Parameters
    ----------
    head_dims : elements of a head, of all layers.
    num_blocks, block_tokens, dtype : of the cache.
    """
    if device.type == "cpu":
        return CpuAttention()
    if (
        device.type == "cuda"
        and torch.cuda.get_device_capability(device) >= _TRITON_CAPABILITY
        and all(fits_flex_attention(each, num_blocks, block_tokens, dtype) for each in set(head_dims))
    ):
        return FlexAttention(device)
    return TorchAttention(device)
