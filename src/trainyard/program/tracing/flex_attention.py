"""FlexAttention as tensor ops, for a graph that runs on any device.

A mask alone becomes fused attention with that mask. Where scores are changed by a function, or their sums are used, all
of them are computed.

References
----------
Dong et al., "Flex Attention: A Programming Model for Generating Optimized Attention Kernels", arXiv 2412.05496, 2024.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._C import _functorch as functorch
from torch._higher_order_ops.flex_attention import math_attention
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.attention import flex_attention as pytorchs
from torch.utils._python_dispatch import _disable_current_modes

from trainyard.program.capture_error import CaptureError
from trainyard.program.op_observer import frames_now, line_of_model

Function = Callable[..., Tensor]


@contextmanager
def flex_attention_uncompiled() -> Iterator[None]:
    """Within it, PyTorch calls its operator, on any device and also where a gradient is wanted."""
    with ExitStack() as stack:
        stack.enter_context(
            patch.multiple(
                pytorchs, _FLEX_ATTENTION_DISABLE_COMPILE_DEBUG=True, _validate_device=lambda *_: None
            )
        )
        # transformers leaves out a padding mask by which nothing is masked; a graph keeps it.
        masks = sys.modules.get("transformers.masking_utils")
        if hasattr(masks, "fast_all"):
            stack.enter_context(patch.object(masks, "fast_all", lambda _: False))
        yield


def flex_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    score_mod: Function,
    block_mask: Any,
    scale: float,
    *options: Any,
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute what PyTorch's operator of this name computes, with its arguments.

    Returns
    -------
    The result, and of every query the logarithm (base 2) of its summed scores and its largest score.

    Raises
    ------
    CaptureError
        If blocks were listed by hand.
    """
    from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex

    _refuse_blocks_alone(block_mask)
    # What nobody uses of these has no part in the graph.
    computed = math_attention(query, key, value, score_mod, block_mask, scale, *options)
    with TransformGetItemToIndex():
        if not _is_identity(score_mod):
            return computed
        mask = _mask(block_mask[-1], query, key)
    is_grouped = query.shape[1] != key.shape[1]
    key, value = (x.expand(query.shape[0], *x.shape[1:]) for x in (key, value))
    out = F.scaled_dot_product_attention(query, key, value, mask, scale=scale, enable_gqa=is_grouped)
    return out, *computed[1:]


def _refuse_blocks_alone(block_mask: Sequence[Any]) -> None:
    """Refuse a mask of blocks that were listed by hand: PyTorch heeds the list only where it compiles."""
    num_queries, num_keys, num_partial, _, num_full, *_, query_block, key_block, mask_mod = block_mask
    num_blocks = -(-num_queries // query_block) * -(-num_keys // key_block)
    if num_blocks == 1:
        return
    # create_block_mask always lists blocks that are seen whole. Without a mask, that is all of them.
    if num_full is not None and (mask_mod is not pytorchs.noop_mask or isinstance(num_full, FakeTensor)):
        return
    if num_full is not None:
        with _disable_current_modes():
            if bool((num_partial.sum(-1) + num_full.sum(-1) == num_blocks).all()):
                return
    raise CaptureError(
        f"{line_of_model(frames_now())} uses FlexAttention with a BlockMask whose blocks were listed by hand, which "
        "PyTorch heeds only where it compiles. Say by a function which keys a query sees, and make the BlockMask of it "
        "by create_block_mask; or use scaled_dot_product_attention with a mask"
    )


def _is_identity(score_mod: Function) -> bool:
    """Whether a function returns the score that it is given."""
    score, indices = torch.zeros(()), torch.zeros(4, dtype=torch.int32).unbind()
    return score_mod(score, *indices) is score


def _mask(mask_mod: Function, query: Tensor, key: Tensor) -> Tensor | None:
    """The mask [rows, heads, queries, keys], with one for all where they are alike; None if nothing is masked."""
    if mask_mod is pytorchs.noop_mask:
        return None
    seen: set[int] = set()
    _over_indices(mask_mod, (1, 1, 1, 1), seen)
    sizes = (*query.shape[:3], key.shape[2])
    return _over_indices(mask_mod, [n if dim in seen else 1 for dim, n in enumerate(sizes)], seen)


def _over_indices(mask_mod: Function, sizes: Sequence[int], seen: set[int]) -> Tensor:
    """Call a function for all indices; ``seen`` gets those of the four by which its result may differ."""

    def noted(*indices: Tensor) -> Tensor:
        dims = {functorch.maybe_get_level(index): dim for dim, index in enumerate(indices)}
        result = inner = mask_mod(*indices)
        while functorch.is_batchedtensor(inner):
            seen.add(dims[functorch.maybe_get_level(inner)])
            inner = functorch.get_unwrapped(inner)
        return result

    run: Function = noted
    for dim in reversed(range(4)):
        run = torch.vmap(run, tuple(0 if d == dim else None for d in range(4)))
    return run(*(torch.arange(n, dtype=torch.int32) for n in sizes))
