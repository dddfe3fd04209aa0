"""Multi-head latent attention: keys and values of all heads follow from one narrow vector of each token.

This is how a prompt is computed. A server that decodes keeps the narrow vector only, and multiplies the queries by what
would make keys of it.

References
----------
DeepSeek-AI, "DeepSeek-V2", arXiv 2405.04434, section 2.1.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainyard.zoo.llama import RMSNorm, rotate


@dataclass(frozen=True)
class LatentConfig:
    """Widths of latent attention.

    Attributes
    ----------
    query_rank : of the narrow vector that queries follow from; 0 where they are products of the token itself.
    kv_rank : of the one that keys and values follow from.
    rotary : elements of a query or key that turn with its position; a key's are the same in all heads.
    plain : elements of a query or key that do not.
    value : elements of a value.
    """

    query_rank: int
    kv_rank: int
    rotary: int
    plain: int
    value: int


class LatentAttention(nn.Module):
    """Causal attention by a latent vector."""

    def __init__(self, hidden: int, heads: int, config: LatentConfig, epsilon: float) -> None:
        super().__init__()
        self.config = config
        queries = heads * (config.plain + config.rotary)
        self.q_down = nn.Linear(hidden, config.query_rank, bias=False) if config.query_rank else None
        self.q_norm = RMSNorm(config.query_rank, epsilon) if config.query_rank else None
        self.q = nn.Linear(config.query_rank or hidden, queries, bias=False)
        self.kv_down = nn.Linear(hidden, config.kv_rank + config.rotary, bias=False)
        self.kv_norm = RMSNorm(config.kv_rank, epsilon)
        self.kv = nn.Linear(config.kv_rank, heads * (config.plain + config.value), bias=False)
        self.out = nn.Linear(heads * config.value, hidden, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        config = self.config
        low = x if self.q_down is None or self.q_norm is None else self.q_norm(self.q_down(x))
        q = self.q(low).unflatten(-1, (-1, config.plain + config.rotary)).transpose(1, 2)
        latent, turning = self.kv_down(x).split((config.kv_rank, config.rotary), -1)
        kv = self.kv(self.kv_norm(latent)).unflatten(-1, (-1, config.plain + config.value)).transpose(1, 2)
        k, v = kv.split((config.plain, config.value), -1)
        q_plain, q_turning = q.split((config.plain, config.rotary), -1)
        q = torch.cat((q_plain, rotate(q_turning, cos, sin)), -1)
        turned = rotate(turning.unsqueeze(1), cos, sin).expand(-1, k.shape[1], -1, -1)
        k = torch.cat((k, turned), -1)
        # Fused attention wants values as wide as keys.
        v = F.pad(v, (0, config.plain + config.rotary - config.value))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)[..., : config.value]
        result: Tensor = self.out(y.transpose(1, 2).flatten(2))
        return result
