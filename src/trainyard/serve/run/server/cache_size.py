"""How large the KV cache of a model is, and how long its sequences, from its configuration alone."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig

from trainyard.reading import shown
from trainyard.serve.errors import ServeError
from trainyard.serve.run.folder_files import check_files
from trainyard.serve.run.pretrained import refusing
from trainyard.serve.run.rope import longest_alike

__all__ = ["block_bytes", "context_of", "longest_sequence"]


def context_of(folder: Path) -> int:
    """Return the longest sequence that a model computes, in tokens; see also `trainyard.serve.run.rope`.

    Raises
    ------
    ServeError
        If its configuration cannot be read, or does not say it.
    """
    config = _config(folder)
    found = getattr(config, "max_position_embeddings", None)
    if type(found) is not int or found < 1:
        raise ServeError(
            f"{folder}/config.json has max_position_embeddings {shown(found)}; allowed is a number of tokens, from 1 on"
        )
    return min(found, longest_alike(folder.name, config) or found)


def block_bytes(folder: Path, block_tokens: int, dtype: torch.dtype) -> int:
    """Bytes of a block of the KV cache of a model.

    Raises
    ------
    ServeError
        If its configuration does not say how large keys and values are.
    """
    config = _config(folder)
    try:
        heads, width = _kept_of_a_token(config)
        layers = config.num_hidden_layers
    except (AttributeError, TypeError, ZeroDivisionError) as error:
        raise ServeError(
            f"{folder}/config.json does not say how large keys and values are ({error}); give --cache-blocks"
        ) from error
    if not all(type(each) is int and each > 0 for each in (heads, width, layers)):
        raise ServeError(
            f"{folder}/config.json has {shown(layers)} layers of {shown(heads)} heads with {shown(width)} elements; "
            "allowed are numbers from 1 on"
        )
    return int(layers * heads * width) * block_tokens * dtype.itemsize


def _kept_of_a_token(config: Any) -> tuple[Any, Any]:
    """Return the heads of a layer, and the elements of a key and of a value of each head."""
    if getattr(config, "kv_lora_rank", None) is not None:  # all heads' keys and values are made of latents
        return (
            config.num_attention_heads,
            config.qk_nope_head_dim + config.qk_rope_head_dim + config.v_head_dim,
        )
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    return heads, 2 * (getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)


def longest_sequence(folder: Path, num_blocks: int, block_tokens: int, max_model_len: int | None) -> int:
    """The longest sequence that can be served, in tokens.

    Raises
    ------
    ServeError
        If the cache has no room for one that is asked for, or for any.
    """
    context, room = context_of(folder), num_blocks * block_tokens
    if max_model_len is not None and max_model_len > context:
        raise ServeError(
            f"--max-model-len {max_model_len}; {folder.name} is computed for at most {context} tokens; give that or less"
        )
    wanted = max_model_len or 2
    if room < wanted:
        least = math.ceil(wanted / block_tokens)
        raise ServeError(
            f"the KV cache of {folder.name} has {num_blocks} blocks of {block_tokens} tokens, {room} tokens, and one "
            f"request may have {wanted}; give --cache-blocks {least} or more, more --cache-memory, or a smaller "
            "--max-model-len"
        )
    return max_model_len or min(context, room)


def _config(folder: Path) -> Any:
    check_files(folder)
    with refusing(folder, "cannot be read"):
        return AutoConfig.from_pretrained(folder, trust_remote_code=False).get_text_config()
