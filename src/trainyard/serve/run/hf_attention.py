"""Attention over the paged KV cache, for models of transformers: it is registered there under names of its own.

A first step of one token finds the calls of attention that each step makes, in their order: the shape of a call's keys
and values, and its window. Windows are read off the masks that transformers makes for the first step. Later steps have
no masks. Each call has a cache of its own, however many calls a layer makes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface

from trainyard.serve.errors import ServeError
from trainyard.serve.run.attention_window import MaskFunction, MaskWindow, UnsupportedMaskError, Window
from trainyard.serve.run.kv_cache import CacheShape
from trainyard.serve.run.paged_attention import LayerCache, PagedAttention
from trainyard.serve.run.step_inputs import StepInputs

__all__ = ["ATTENTION", "FIRST_STEP", "AttentionCall", "AttentionContext", "connect", "first_step"]

ATTENTION = "trainyard_paged"
"""The name under which transformers knows it."""

FIRST_STEP = "trainyard_first_step"
"""The name of the attention of the first step, which finds the calls."""

_CONTEXT = "_trainyard_attention"
_KNOWN = frozenset(
    {
        "dropout",
        "scaling",
        "sliding_window",
        "is_causal",
        "s_aux",
        "softcap",
        "position_ids",
        "cache",
        "use_cache",
        "logits_to_keep",
    }
)
"""Arguments of a model that are done here, or that say nothing about the result of a step."""


_first_context: ContextVar[AttentionContext] = ContextVar("_first_context")


class AttentionCall(NamedTuple):
    """A call of attention, as each step makes it.

    Attributes
    ----------
    shape : of its keys and values in the cache.
    window : tokens that a query sees.
    """

    shape: CacheShape
    window: Window


@dataclass
class AttentionContext:
    """Inputs of a step that the layers of a model need beside their own keys and values.

    Attributes
    ----------
    context : the longest sequence, in tokens.
    attention : that computes it; None in the first step.
    layers : KV cache of every call.
    inputs : of the present step.
    calls : of attention in each step, as the first one found them.
    num_called : how many of them the present step has made.
    report : is called when attention is computed.
    """

    context: int
    attention: PagedAttention | None = None
    layers: list[LayerCache] = field(default_factory=list)
    inputs: StepInputs | None = None
    calls: list[AttentionCall] = field(default_factory=list)
    num_called: int = 0
    report: Callable[[], None] = lambda: None
    _masks: dict[int, tuple[Tensor, MaskFunction]] = field(default_factory=dict)
    _windows: dict[int, MaskWindow] = field(default_factory=dict)

    def add_mask(self, mask: Tensor, sees: MaskFunction) -> None:
        """Remember the function of a mask of the first step, for the mask and all its views."""
        self._masks[mask.untyped_storage().data_ptr()] = mask, sees

    def window_of(self, mask: Tensor | None) -> Window:
        """Return the window of a mask of the first step; None if there is no mask.

        Raises
        ------
        UnsupportedMaskError
            If the mask is no window, or is not made by transformers' functions of masks.
        """
        if mask is None:
            return None
        place = mask.untyped_storage().data_ptr()
        if place not in self._masks:
            raise UnsupportedMaskError("the mask is not made by a function of transformers' masking_utils")
        if place not in self._windows:
            self._windows[place] = MaskWindow(self._masks[place][1], self.context, mask.device)
        window = self._windows[place]
        return None if window.is_unbounded else window

    def next_call(self, shape: CacheShape) -> int:
        """Return the number of a call in its step.

        Raises
        ------
        ServeError
            If the first step has made another call in its place.
        """
        number = self.num_called
        self.num_called += 1
        if number >= len(self.calls) or self.calls[number].shape != shape:
            raise _other_calls()
        return number

    def require_all_calls(self) -> None:
        """Refuse a step that has made fewer calls than the first one.

        Raises
        ------
        ServeError
            If it has made fewer.
        """
        if self.num_called != len(self.calls):
            raise _other_calls()


def _other_calls() -> ServeError:
    return ServeError("its steps call attention in different ways; allowed are the same calls in every step")


def connect(model: nn.Module, context: AttentionContext) -> None:
    """Let the layers of a model use a context."""
    for module in model.modules():
        setattr(module, _CONTEXT, context)


@contextmanager
def first_step(context: AttentionContext) -> Iterator[None]:
    """Let masks that transformers makes be of the first step of a context, within ``with``."""
    token = _first_context.set(context)
    try:
        yield
    finally:
        _first_context.reset(token)


def _paged(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **more: Any,
) -> tuple[Tensor, None]:
    """Compute the attention of one call, for a query of shape (1, heads, tokens, width), as transformers asks for it.

    ``softcap`` bounds the scores, and ``s_aux`` are sinks. The result is (1, tokens, heads, value_width).
    """
    _require_known(module, more, has_own_mask=attention_mask is not None)
    context: AttentionContext = getattr(module, _CONTEXT)
    number = context.next_call(CacheShape(key.shape[1], key.shape[3], value.shape[3]))
    attention, inputs = context.attention, context.inputs
    if attention is None or inputs is None:  # nothing is asked for but the calls
        return _own_value(query, value), None
    cache, batch = context.layers[number], inputs.attention
    attention.write(key[0].transpose(0, 1), value[0].transpose(0, 1), cache, batch)
    window = context.calls[number].window
    found = attention.attend(query[0].transpose(0, 1), cache, batch, scaling, window, softcap, s_aux)
    context.report()
    return found[None], None


def _first_step(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **more: Any,
) -> tuple[Tensor, None]:
    """Note a call of attention. Its only token sees itself alone."""
    context: AttentionContext = getattr(module, _CONTEXT)
    _require_known(module, more, has_own_mask=False)
    shape = CacheShape(key.shape[1], key.shape[3], value.shape[3])
    try:
        context.calls.append(AttentionCall(shape, context.window_of(attention_mask)))
    except UnsupportedMaskError:
        _require_known(module, more, has_own_mask=True)
    return _own_value(query, value), None


def _own_value(query: Tensor, value: Tensor) -> Tensor:
    """Return the attention of a token that sees itself alone."""
    return value.repeat_interleave(query.shape[1] // value.shape[1], 1).transpose(1, 2)


def _first_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    mask_function: MaskFunction,
    device: torch.device | str = "cpu",
    **more: Any,
) -> Tensor:
    """Make a mask of the first step in which all tokens are seen, and note its function."""
    context, mask = _first_context.get(), torch.zeros(batch_size, 1, q_length, kv_length, device=device)
    context.add_mask(mask, mask_function)
    return mask


def _require_known(module: nn.Module, more: Mapping[str, Any], *, has_own_mask: bool) -> None:
    """Refuse arguments of attention that are not supported."""
    unknown = [
        name
        for name, given in more.items()
        if given is not None and name not in _KNOWN and not name.startswith("output_")
    ]
    if has_own_mask or unknown:
        what = ", ".join(unknown) or "a mask of its own"
        raise ServeError(
            f"{type(module).__name__} computes attention with {what}; allowed is plain causal attention, with a sliding "
            "window or chunks, or without"
        )


AttentionInterface.register(ATTENTION, _paged)
AttentionInterface.register(FIRST_STEP, _first_step)
AttentionMaskInterface.register(FIRST_STEP, _first_mask)
