"""Weights of models of the zoo by the names that transformers has for them."""

from __future__ import annotations

import re
from collections.abc import Mapping

from torch import Tensor

from trainyard.zoo.gpt import GPTConfig
from trainyard.zoo.llama import LlamaConfig

__all__ = ["LLAMA_NAMES", "transformers_weights"]

_BLOCK = re.compile(r"blocks\.(\d+)\.(.+)\.(weight|bias)")
_GPT = {
    "tokens": "transformer.wte",
    "positions": "transformer.wpe",
    "norm": "transformer.ln_f",
    "blocks": "transformer.h",
    "norm_1": "ln_1",
    "attention.qkv": "attn.c_attn",
    "attention.out": "attn.c_proj",
    "norm_2": "ln_2",
    "up": "mlp.c_fc",
    "down": "mlp.c_proj",
}
LLAMA_NAMES = {
    "tokens": "model.embed_tokens",
    "norm": "model.norm",
    "head": "lm_head",
    "blocks": "model.layers",
    "norm_1": "input_layernorm",
    "attention.q": "self_attn.q_proj",
    "attention.k": "self_attn.k_proj",
    "attention.v": "self_attn.v_proj",
    "attention.out": "self_attn.o_proj",
    "attention.norm_q": "self_attn.q_norm",
    "attention.norm_k": "self_attn.k_norm",
    "norm_2": "post_attention_layernorm",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
}
"""Names of transformers for the layers of a model like Llama, by the zoo's names."""


def transformers_weights(config: GPTConfig | LlamaConfig, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Name the weights of a model of the zoo as transformers does.

    Parameters
    ----------
    config : sizes of the model.
    weights : by their paths in the zoo's module.

    Returns
    -------
    dict
        Contiguous tensors. GPT-2 of transformers has its matrices of shape ``(in, out)``, and so they are here.
    """
    names = _GPT if isinstance(config, GPTConfig) else LLAMA_NAMES
    found = {}
    for path, tensor in weights.items():
        block = _BLOCK.fullmatch(path)
        if block is None:
            layer, kind = path.rsplit(".", 1)
            found[f"{names[layer]}.{kind}"] = tensor.contiguous()
            continue
        number, layer, kind = block.groups()
        is_transposed = isinstance(config, GPTConfig) and tensor.dim() == 2
        name = f"{names['blocks']}.{number}.{names[layer]}.{kind}"
        found[name] = (tensor.T if is_transposed else tensor).contiguous()
    return found
