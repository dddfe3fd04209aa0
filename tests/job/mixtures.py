"""Small mixtures of experts, as transformers and the zoo write them."""

from __future__ import annotations

from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    DeepseekV3Config,
    GptOssConfig,
    MixtralConfig,
    PreTrainedConfig,
    Qwen3MoeConfig,
)

from trainyard.program.model import Model

_SIZES = {
    "vocab_size": 64,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 32,
}
_EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 24}

CONFIGS: dict[str, PreTrainedConfig] = {
    "mixtral": MixtralConfig(**_SIZES, num_local_experts=4, num_experts_per_tok=2),
    "qwen3-moe": Qwen3MoeConfig(**_SIZES, **_EXPERTS, num_experts=4, head_dim=8),
    "deepseek-v3": DeepseekV3Config(
        **_SIZES | {"num_key_value_heads": 4},
        **_EXPERTS,
        n_routed_experts=8,
        n_group=2,
        topk_group=1,
        first_k_dense_replace=1,
        q_lora_rank=16,
        kv_lora_rank=16,
        qk_rope_head_dim=8,
        qk_nope_head_dim=8,
        v_head_dim=8,
    ),
    "gpt-oss": GptOssConfig(
        **_SIZES,
        num_local_experts=4,
        num_experts_per_tok=2,
        head_dim=8,
        sliding_window=4,
        layer_types=["sliding_attention", "full_attention"],
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
    ),
}
"""By name."""


def next_token_loss(module: Any, batch: Any) -> torch.Tensor:
    loss: torch.Tensor = module(**batch, use_cache=False).loss
    return loss


def mixture(name: str, num_rows: int = 4) -> Model:
    """A model of transformers with random weights, and a batch of random tokens."""
    torch.manual_seed(0)
    module = AutoModelForCausalLM.from_config(CONFIGS[name])
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.1 * torch.randn_like(parameter))
    ids = torch.randint(0, 64, (num_rows, 8))
    return Model(name, module, next_token_loss, {"input_ids": ids, "labels": ids})
