"""Small models of families whose attention or positions are their own, with all that they have in use."""

from __future__ import annotations

from typing import Any

import torch
from tests.serve.run.tiny_models import CONTEXT, VOCABULARY
from transformers import (
    DeepseekV2Config,
    DeepseekV2ForCausalLM,
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    GptOssConfig,
    GptOssForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
    PreTrainedModel,
)

SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": CONTEXT,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
LATENT: dict[str, Any] = {
    **SIZES,
    "num_key_value_heads": 4,
    "moe_intermediate_size": 32,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "first_k_dense_replace": 1,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 12,
}
ORIGINAL = 96
"""Tokens up to which models with LongRoPE have their short factors."""
_YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 64}
_MADE: dict[str, tuple[type[Any], type[Any], dict[str, Any]]] = {
    "gemma2": (
        Gemma2ForCausalLM,
        Gemma2Config,
        SIZES
        | {
            "head_dim": 24,
            "query_pre_attn_scalar": 48,
            "attn_logit_softcapping": 2.0,
            "final_logit_softcapping": 3.0,
            "sliding_window": 16,
        },
    ),
    "gpt_oss": (
        GptOssForCausalLM,
        GptOssConfig,
        SIZES
        | {
            "head_dim": 16,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "sliding_window": 16,
            "rope_parameters": _YARN | {"truncate": False},
        },
    ),
    "deepseek_v2": (
        DeepseekV2ForCausalLM,
        DeepseekV2Config,
        LATENT | {"q_lora_rank": None, "n_shared_experts": 1},
    ),
    "deepseek_v3": (
        DeepseekV3ForCausalLM,
        DeepseekV3Config,
        LATENT
        | {
            "q_lora_rank": 24,
            "n_group": 2,
            "topk_group": 1,
            "rope_parameters": _YARN | {"mscale": 1.0, "mscale_all_dim": 0.7},
        },
    ),
    "phi3 with longrope": (
        Phi3ForCausalLM,
        Phi3Config,
        SIZES
        | {
            "original_max_position_embeddings": ORIGINAL,
            "partial_rotary_factor": 0.5,
            "rope_parameters": {
                "rope_type": "longrope",
                "rope_theta": 1e4,
                "short_factor": [1.0, 1.1, 1.3, 1.6],
                "long_factor": [1.0, 3.0, 5.0, 9.0],
            },
        },
    ),
    "llama with dynamic rope": (
        LlamaForCausalLM,
        LlamaConfig,
        SIZES | {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0}},
    ),
}
FAMILIES = tuple(_MADE)


def made_family(name: str, **more: Any) -> PreTrainedModel:
    """A model, the same for each call.

    Parameters
    ----------
    more : fields of its configuration that are others.
    """
    kind, config, given = _MADE[name]
    torch.manual_seed(0)
    model: PreTrainedModel = kind(config(**given | more)).eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for path, param in model.named_parameters():
            if "norm" in path or "bias" in path or "sinks" in path:  # which begin as ones, zeros, or anything
                param.copy_(torch.randn(param.shape, generator=generator) * (0.8 if "sinks" in path else 0.2))
                param += "norm" in path and name != "gemma2"
            else:
                param.mul_(3.0)
    return model
