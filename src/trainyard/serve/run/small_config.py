"""Small configurations of models: layers of each kind, few heads, narrow vectors and short windows.

The name of a field tells what its number is: families of transformers share most names. A number whose name tells nothing
is a size or a length, and is made small, so that it matters to a few dozen tokens. Names do not tell whether layers of
all kinds are left: layers of models without storage are compared.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

__all__ = ["SMALL_CONTEXT", "SmallModelError", "causal_model_of", "small_config"]

SMALL_CONTEXT = 64
"""The longest sequence of a small model, in tokens; a configuration with a shorter one keeps its own."""

_SMALL, _FEED_FORWARD, _VOCABULARY, _EXPERTS, _TOP = 16, 128, 211, 8, 2
_LEAST_LAYERS = (2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 40, 48, 64, 80, 96)
_NOT_OF_THE_MODEL = (
    "_name_or_path", "architectures", "auto_map", "dtype", "id2label", "label2id", "quantization_config", "torch_dtype",
    "transformers_version",
)  # fmt: skip
_HEADS = re.compile(r"(?<!^d_)(?<!^dim_)(heads|(^|_)n_head|num_query_groups)(_per_layer)?$")
_KEY_HEADS = re.compile(r"key_value_heads|kv_heads|query_groups")
_HEAD_SIZE = re.compile(r"head_?(dim|size|width)|^(d_head|dim_head|kv_channels|rotary_dim)$|section")
_HIDDEN = re.compile(
    r"^(hidden_size|d_model|n_embd|emb_dim|embed_dim|hidden_dim|\w*embedding_(size|dim)|word_embed_proj_dim)$"
)
_FEED_FORWARD_NAME = re.compile(r"intermediate|ffn|(^|_)(ff|dff|mlp)(_|$)|d_inner")
_CONTEXT = re.compile(
    r"(position_embeddings|n_positions|n_ctx|max_seq_len|context_length|max_target_positions)$"
)
_TOKEN = re.compile(r"_(token_id|index|idx|id)s?$")
_IS_NO_SIZE = re.compile(r"theta|base|factor|scalar|multiplier|seed|beta")
_LAYERS = re.compile(r"layer|depth")
_INDEX = re.compile(r"idx|index|layer_id|layer_number")


class SmallModelError(Exception):
    """A failure of transformers to compute a small model, which tells nothing about the large model."""


def small_config(config: Any) -> dict[str, Any]:
    """Return a small configuration that differs from another in sizes only, as the fields of a ``config.json``.

    The small model has layers of all kinds that the large one has. Sizes of vectors stay as they are if transformers
    makes no model of smaller ones.

    Parameters
    ----------
    config : of transformers.

    Raises
    ------
    SmallModelError
        If transformers makes no model of a small configuration.
    """
    reasons = []
    for keeps_widths in (False, True):
        try:
            return _few_layers(config, keeps_widths)
        except Exception as error:  # of a configuration that cannot be, any
            reasons.append(f"{type(error).__name__}: {error}")
    raise SmallModelError(reasons[0])


def _few_layers(config: Any, keeps_widths: bool) -> dict[str, Any]:
    """Return the fields with the fewest layers among which all kinds are."""
    total = _total_layers(config)
    whole = _Shrunk(config, total, keeps_widths).fields
    num_layers_of_whole, wanted = _kinds(whole)
    for num_layers in (each for each in _LEAST_LAYERS if each < total):
        for scales_layers in (False, True):
            fields = _Shrunk(config, num_layers, keeps_widths, scales_layers).fields
            with suppress(Exception):  # so many layers cannot be
                num_found, kinds = _kinds(fields)
                if num_found == num_layers_of_whole:  # another field says how many there are
                    return whole
                if kinds == wanted:
                    return fields
    return whole


def causal_model_of(fields: Mapping[str, Any]) -> Any:
    """Make the model of a configuration, with transformers.

    Parameters
    ----------
    fields : of a ``config.json``.
    """
    given = dict(fields)
    config = AutoConfig.for_model(given.pop("model_type"), **given)
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32, trust_remote_code=False)


def _total_layers(config: Any) -> int:
    """Return the number of layers in the ``config.json``, or else the one that transformers finds."""
    text = config.get_text_config()
    name = text.attribute_map.get("num_hidden_layers", "num_hidden_layers")
    return int(text.to_dict().get(name) or text.num_hidden_layers)


def _kinds(fields: Mapping[str, Any]) -> tuple[int, frozenset[object]]:
    """Return the number of layers, and the kinds of layers, of a model that is made without storage."""
    with torch.device("meta"):
        model = causal_model_of(fields)
    found: list[object] = []
    inside: tuple[str, ...] = ()
    for name, module in model.named_modules():
        if isinstance(module, nn.ModuleList) and not name.startswith(inside):
            inside = (*inside, f"{name}.")
            found += [(name, _kind(layer)) for layer in module]
    return len(found), frozenset(found)


def _kind(layer: nn.Module) -> object:
    return tuple(
        (
            name,
            type(module),
            tuple(
                (key, value)
                for key, value in sorted(vars(module).items())
                if type(value) in (bool, int, str) and not _INDEX.search(key)
            ),
            tuple((key, tuple(each.shape)) for key, each in module.named_parameters(recurse=False)),
        )
        for name, module in layer.named_modules()
    )


class _Shrunk:
    """The fields of a configuration, made small.

    Parameters
    ----------
    config : of transformers.
    num_layers : of the small model.
    keeps_widths : whether sizes of vectors stay as they are.
    scales_layers : whether numbers of some of the layers are as much smaller as that of all.
    """

    def __init__(
        self, config: Any, num_layers: int, keeps_widths: bool = False, scales_layers: bool = False
    ) -> None:
        text = config.get_text_config()
        all_fields, names = text.to_dict(), text.attribute_map
        self._layers_name = names.get("num_hidden_layers", "num_hidden_layers")
        self._total, self._num_layers = _total_layers(config), num_layers
        self._keeps_widths, self._scales_layers = keeps_widths, scales_layers
        self._heads = int(all_fields.get(names.get("num_attention_heads", "num_attention_heads")) or 1)
        key_heads = all_fields.get(names.get("num_key_value_heads", "num_key_value_heads"))
        self._key_heads = int(key_heads or self._heads)
        positions = [
            v for name, v in all_fields.items() if _CONTEXT.search(name) and type(v) is int and v > 0
        ]
        self._context = min(positions, default=SMALL_CONTEXT)
        of_text = [key for key in config.sub_configs if getattr(config, key, None) is text]
        fields = {name: value for name, value in config.to_dict().items() if name not in _NOT_OF_THE_MODEL}
        self.fields = self._object(fields, is_text=text is config, text_name=of_text[0] if of_text else "")

    def _object(self, fields: Mapping[str, Any], *, is_text: bool, text_name: str = "") -> dict[str, Any]:
        return {
            str(name): self._value(str(name), value, is_text=is_text or name == text_name)
            for name, value in fields.items()
            if name not in _NOT_OF_THE_MODEL
            and not (str(name).isdigit() and int(name) >= self._num_layers)  # overrides of a layer
        }

    def _value(self, name: str, value: Any, *, is_text: bool) -> Any:
        if isinstance(value, dict):
            return self._object(value, is_text=is_text)
        if isinstance(value, list | tuple):
            return self._list(name, list(value), is_text=is_text)
        if type(value) is not int:
            return value
        if is_text and name == self._layers_name:
            return self._num_layers
        return self._number(name, value, is_text=is_text)

    def _list(self, name: str, values: list[Any], *, is_text: bool) -> list[Any]:
        are_numbers = all(type(each) is int for each in values)
        if is_text and len(values) == self._total and not (are_numbers and _are_layers(name, values)):
            values = values[: self._num_layers]
        elif is_text and are_numbers and _are_layers(name, values):
            return [each for each in values if each < self._num_layers]
        return [self._value(name, each, is_text=is_text) for each in values]

    def _number(self, name: str, value: int, *, is_text: bool) -> int:
        """Return a small number for a field of a name."""
        if _TOKEN.search(name):
            return min(value, _VOCABULARY - 1)
        if name.endswith(("vocab_size", "vocab_size_per_layer_input")):
            return min(value, _VOCABULARY)
        if _CONTEXT.search(name):
            return value * SMALL_CONTEXT // self._context if self._context > SMALL_CONTEXT else value
        if _LAYERS.search(name) and "per_layer" not in name:
            if not is_text:
                return min(value, 2)
            return -(-value * self._num_layers // self._total) if self._scales_layers else value
        if re.search(r"(per_tok(en)?|topk|top_k|moe_k)$", name):
            return min(value, _TOP)
        if re.search(r"^(n_group|num_expert_group|topk_group)$", name):
            return min(value, 1 if name.startswith("topk") else 2)
        if re.search(r"expert(s|_num)$", name):
            return min(value, _EXPERTS)
        if _HEAD_SIZE.search(name) or _IS_NO_SIZE.search(name):
            return value
        return self._width(name, value)

    def _width(self, name: str, value: int) -> int:
        if _HEADS.search(name):
            return (
                value if self._keeps_widths else self._few_heads(value, is_key=bool(_KEY_HEADS.search(name)))
            )
        if _HIDDEN.search(name):
            return (
                value if self._keeps_widths else max(1, value // self._heads) * self._few_heads(self._heads)
            )
        return min(value, _FEED_FORWARD if _FEED_FORWARD_NAME.search(name) else _SMALL)

    def _few_heads(self, num: int, *, is_key: bool = False) -> int:
        """Return the number of heads of a small model; two heads share keys where more did."""
        key_heads = min(2, num if is_key else self._key_heads)
        if is_key:
            return key_heads
        group = num // self._key_heads if num % self._key_heads == 0 else 1
        return min(num, key_heads * min(2, max(1, group)))


def _are_layers(name: str, values: list[int]) -> bool:
    """Return whether the numbers of a list are those of layers."""
    return bool(_LAYERS.search(name) or _INDEX.search(name)) and values == sorted(set(values))
