"""Attention over the paged KV cache, for models of transformers: it is registered there under a name of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn
from transformers import AttentionInterface

from trainyard.serve.errors import ServeError
from trainyard.serve.run.kv_cache import CacheShape
from trainyard.serve.run.paged_attention import LayerCache, PagedAttention
from trainyard.serve.run.step_inputs import StepInputs

__all__ = ["ATTENTION", "AttentionContext", "connect"]

ATTENTION = "trainyard_paged"
"""The name under which transformers knows it."""

_CONTEXT = "_trainyard_attention"
_KNOWN = frozenset(
    {"dropout", "scaling", "sliding_window", "is_causal", "position_ids", "cache", "use_cache"}
)
"""Arguments of a model that are done here, or that say nothing about the result of a step."""


@dataclass
class AttentionContext:
    """What the layers of a model need of a step beside their own keys and values.

    Attributes
    ----------
    attention : that computes it; None while shapes are asked for.
    layers : KV cache of every layer.
    inputs : of the present step.
    shapes : of what layers keep, by their number, as far as they were called.
    report : is called when the attention of a layer is computed.
    """

    attention: PagedAttention | None = None
    layers: list[LayerCache] = field(default_factory=list)
    inputs: StepInputs | None = None
    shapes: dict[int, CacheShape] = field(default_factory=dict)
    report: Callable[[], None] = lambda: None


def connect(model: nn.Module, context: AttentionContext) -> None:
    """Let the attention layers of a model use a context."""
    for module in model.modules():
        if isinstance(getattr(module, "layer_idx", None), int):
            setattr(module, _CONTEXT, context)


def _paged(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **more: Any,
) -> tuple[Tensor, None]:
    """Attention of one layer, for a query of shape (1, heads, tokens, width), with the arguments of transformers.

    ``softcap`` bounds the scores, and ``s_aux`` are sinks. The result is (1, tokens, heads, value_width).
    """
    unknown = [
        name
        for name, given in more.items()
        if given is not None and name not in _KNOWN and not name.startswith("output_")
    ]
    if attention_mask is not None or unknown:
        what = ", ".join(unknown) or "a mask of its own"
        raise ServeError(
            f"{type(module).__name__} computes attention with {what}; allowed is plain causal attention, with a sliding "
            "window or without"
        )
    context: AttentionContext = getattr(module, _CONTEXT)
    layer = module.layer_idx
    assert isinstance(layer, int)
    context.shapes[layer] = CacheShape(key.shape[1], key.shape[3], value.shape[3])
    attention, inputs = context.attention, context.inputs
    if attention is None or inputs is None:  # only shapes are asked for
        return value.repeat_interleave(query.shape[1] // value.shape[1], 1).transpose(1, 2), None
    cache, batch = context.layers[layer], inputs.attention
    attention.write(key[0].transpose(0, 1), value[0].transpose(0, 1), cache, batch)
    found = attention.attend(query[0].transpose(0, 1), cache, batch, scaling, sliding_window, softcap, s_aux)
    context.report()
    return found[None], None


AttentionInterface.register(ATTENTION, _paged)
