"""Models of the zoo as transformers has them, with random weights: for trying and measuring a server without weights."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from trainyard.serve.errors import ServeError
from trainyard.serve.run.byte_tokenizer import BYTE_VOCABULARY, byte_end, save_byte_tokenizer
from trainyard.zoo.decoder import DecoderConfig
from trainyard.zoo.gpt import GPTConfig
from trainyard.zoo.hugging_face import read_config
from trainyard.zoo.llama import LlamaConfig

__all__ = ["random_model", "save_random_model", "save_zoo_config", "weight_bytes"]

_SEED = 0
_DENSE_TYPES = ("llama", "qwen3", "qwen2", "mistral")
_MIXTURE_TYPES = ("mixtral", "qwen3_moe")


def save_random_model(name: str, config: object, folder: Path) -> Path:
    """Save the configuration of a model of the zoo and a byte tokenizer, and no weights; return the folder.

    Parameters
    ----------
    name : of the model, for messages.
    config : its sizes in the zoo.
    folder : is made.

    Raises
    ------
    ServeError
        If transformers has no such model, or it knows fewer tokens than there are bytes.
    """
    if not isinstance(config, GPTConfig | LlamaConfig):
        raise _refused(name)
    if config.vocab < BYTE_VOCABULARY:
        raise ServeError(
            f"{name} knows {config.vocab} tokens; with random weights, {BYTE_VOCABULARY} or more are needed, for each "
            "byte and the end; give another model, such as gpt2"
        )
    folder.mkdir()
    save_zoo_config(name, config, folder)
    return save_byte_tokenizer(folder, config.vocab)


def save_zoo_config(name: str, config: object, folder: Path) -> None:
    """Save the configuration of a model of the zoo as transformers has it.

    Parameters
    ----------
    name : of the model, for messages.
    config : its sizes in the zoo.
    folder : exists.

    Raises
    ------
    ServeError
        If transformers has no such model.
    """
    end = byte_end(config.vocab) if isinstance(config, GPTConfig | LlamaConfig) else None
    for fields in _candidates(config):
        saved = fields | {"bos_token_id": end, "eos_token_id": end}
        (folder / "config.json").write_text(json.dumps(saved))
        if isinstance(config, GPTConfig) or _is_read_as(config, folder):
            return
    raise _refused(name)


def random_model(folder: Path, dtype: torch.dtype) -> PreTrainedModel:
    """Make a model with weights that are drawn, always the same ones.

    Parameters
    ----------
    folder : with its ``config.json``, as `save_random_model` saves it.
    dtype : type of its weights, in which they are drawn.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(_SEED)
        return _made(folder, dtype)


def weight_bytes(folder: Path, dtype: torch.dtype) -> int:
    """Bytes of the weights of a model in a process that computes it.

    A matrix that is both the embedding and the output is there twice, as products have it in an order of their own.
    """
    with torch.device("meta"):
        model = _made(folder, dtype)
    weights: list[torch.Tensor] = [*model.parameters(), *model.buffers()]
    output: Any = model.get_output_embeddings()
    embedding: Any = model.get_input_embeddings()
    if output.weight is embedding.weight:
        weights.append(output.weight)
    return sum(each.numel() * each.element_size() for each in weights)


def _made(folder: Path, dtype: torch.dtype) -> PreTrainedModel:
    config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=dtype, trust_remote_code=False)
    return model


def _candidates(config: object) -> tuple[dict[str, Any], ...]:
    """Configurations of transformers that may be those of a model."""
    if isinstance(config, LlamaConfig):
        kinds = _MIXTURE_TYPES if isinstance(config, DecoderConfig) else _DENSE_TYPES
        return tuple(_llama(config) | {"model_type": kind} for kind in kinds)
    return (_gpt2(config),) if type(config) is GPTConfig else ()  # with mixtures, it is another model


def _is_read_as(config: object, folder: Path) -> bool:
    """Whether what was saved says all that there is to a model."""
    return isinstance(config, LlamaConfig) and read_config(folder) == replace(config, head_width=config.width)


def _gpt2(config: GPTConfig) -> dict[str, Any]:
    return {
        "model_type": "gpt2",
        "vocab_size": config.vocab,
        "n_positions": config.context,
        "n_layer": config.layers,
        "n_embd": config.hidden,
        "n_head": config.heads,
        "n_inner": config.widening * config.hidden,
    }


def _llama(config: LlamaConfig) -> dict[str, Any]:
    """All that the kinds that are like Llama say of a model, each a part of it."""
    found = {
        "vocab_size": config.vocab,
        "max_position_embeddings": config.context,
        "num_hidden_layers": config.layers,
        "hidden_size": config.hidden,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "intermediate_size": config.ffn,
        "rope_theta": config.theta,
        "head_dim": config.width,
        "rms_norm_eps": config.epsilon,
        "tie_word_embeddings": config.tied,
        "attention_bias": config.qkv_bias,
        "sliding_window": config.window or None,
    }
    if isinstance(config, DecoderConfig):
        mixture = config.mixture
        found |= {
            "num_local_experts": mixture.experts,
            "num_experts": mixture.experts,
            "num_experts_per_tok": mixture.top,
            "moe_intermediate_size": mixture.width,
            "norm_topk_prob": mixture.normalised,
        }
    return found


def _refused(name: str) -> ServeError:
    kinds = ", ".join(("gpt2", *_DENSE_TYPES, *_MIXTURE_TYPES))
    return ServeError(
        f"{name} cannot be served: transformers' {kinds} are not of its kind; give another model, such as gpt2 or "
        "llama3-8b, or a folder with weights"
    )
