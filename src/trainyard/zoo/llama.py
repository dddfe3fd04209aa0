"""Llama: a decoder-only transformer with rotary positions, grouped-query attention and a gated MLP.

References
----------
Touvron et al., "Llama 2: Open Foundation and Fine-Tuned Chat Models", arXiv 2307.09288.
Grattafiori et al., "The Llama 3 Herd of Models", arXiv 2407.21783, table 3.
Su et al., "RoFormer: Enhanced Transformer with Rotary Position Embedding", arXiv 2104.09864.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainyard.program.model import Model
from trainyard.zoo.common import next_token_loss, token_batch


@dataclass(frozen=True)
class LlamaConfig:
    """Sizes of a Llama; the defaults are Llama 3 8B.

    Attributes
    ----------
    kv_heads : heads of keys and values, each shared by ``heads / kv_heads`` heads of queries.
    ffn : width of the MLP.
    theta : base of the rotary wavelengths.
    """

    vocab: int = 128256
    context: int = 8192
    layers: int = 32
    hidden: int = 4096
    heads: int = 32
    kv_heads: int = 8
    ffn: int = 14336
    theta: float = 500000.0


class RMSNorm(nn.Module):
    """Divide by the root mean square over the last dimension, computed in float32."""

    def __init__(self, hidden: int, epsilon: float = 1e-5) -> None:
        super().__init__()
        self.epsilon = epsilon
        self.weight = nn.Parameter(nn.init.ones_(torch.empty(hidden)))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        normal = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.epsilon)
        return normal.to(x.dtype) * self.weight


def rotations(config: LlamaConfig, length: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """Cosine and sine of every position's angles, each [length, head width / 2], in the type of ``like``."""
    half = config.hidden // config.heads // 2
    exponents = torch.arange(half, device=like.device, dtype=torch.float32) / half
    positions = torch.arange(length, device=like.device, dtype=torch.float32)
    angles = positions[:, None] * (config.theta**-exponents)
    return angles.cos().to(like.dtype), angles.sin().to(like.dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn the pairs (i, i + half) of the last dimension of x [rows, heads, length, width]."""
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


class Attention(nn.Module):
    """Causal attention in which groups of query heads share keys and values."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.width = config.hidden // config.heads
        self.group = config.heads // config.kv_heads
        self.q = nn.Linear(config.hidden, config.hidden, bias=False)
        self.k = nn.Linear(config.hidden, config.kv_heads * self.width, bias=False)
        self.v = nn.Linear(config.hidden, config.kv_heads * self.width, bias=False)
        self.out = nn.Linear(config.hidden, config.hidden, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        q, k, v = (p(x).unflatten(-1, (-1, self.width)).transpose(1, 2) for p in (self.q, self.k, self.v))
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        if self.group > 1:
            k, v = (t.unsqueeze(2).expand(-1, -1, self.group, -1, -1).flatten(1, 2) for t in (k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        result: Tensor = self.out(y.transpose(1, 2).flatten(2))
        return result


class Block(nn.Module):
    """Attention and the gated MLP, each normalised before and added to its input."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.norm_1 = RMSNorm(config.hidden)
        self.attention = Attention(config)
        self.norm_2 = RMSNorm(config.hidden)
        self.gate = nn.Linear(config.hidden, config.ffn, bias=False)
        self.up = nn.Linear(config.hidden, config.ffn, bias=False)
        self.down = nn.Linear(config.ffn, config.hidden, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.attention(self.norm_1(x), cos, sin)
        y = self.norm_2(x)
        result: Tensor = x + self.down(F.silu(self.gate(y)) * self.up(y))
        return result


class Llama(nn.Module):
    """Tokens [rows, length] to logits [rows, length, vocab]."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.config = config
        self.tokens = nn.Embedding(config.vocab, config.hidden)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = RMSNorm(config.hidden)
        self.head = nn.Linear(config.hidden, config.vocab, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens)
        cos, sin = rotations(self.config, tokens.shape[1], x)
        for block in self.blocks:
            x = block(x, cos, sin)
        result: Tensor = self.head(self.norm(x))
        return result


def build(name: str, config: LlamaConfig, rows: int) -> Model:
    """A Llama with next-token cross-entropy on ``rows`` sequences of full length."""
    return Model(name, Llama(config), next_token_loss, token_batch(rows, config.context, config.vocab))
