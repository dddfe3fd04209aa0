"""Llama: a decoder-only transformer with rotary positions, grouped-query attention and a gated MLP.

Mistral, Qwen2 and Qwen3 are the same but for heads of another width, a norm of queries and keys, and biases. Positions
are not scaled beyond the context of pre-training (``rope_scaling``), which changes values and no shape.

References
----------
Touvron et al., "Llama 2: Open Foundation and Fine-Tuned Chat Models", arXiv 2307.09288.
Grattafiori et al., "The Llama 3 Herd of Models", arXiv 2407.21783, table 3.
Su et al., "RoFormer: Enhanced Transformer with Rotary Position Embedding", arXiv 2104.09864.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

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
    head_width : elements of a head; 0 is ``hidden / heads``.
    rotary : elements of a head that turn with its position; 0 is all.
    qk_norm : of what queries and keys are normalised: nothing, each head (Qwen3), or all heads together (MiniMax-M2).
    qkv_bias, out_bias : whether the products of attention add a bias: that of queries, keys and values (Qwen2), and the
        last one.
    window : tokens that a token sees, itself included; 0 is all.
    tied : whether the scores of words are products with the look-up table.
    epsilon : added to mean squares before a root is taken.
    score_width : scores of attention are divided by its root; 0 is the width of a head.
    """

    vocab: int = 128256
    context: int = 8192
    layers: int = 32
    hidden: int = 4096
    heads: int = 32
    kv_heads: int = 8
    ffn: int = 14336
    theta: float = 500000.0
    head_width: int = 0
    rotary: int = 0
    qk_norm: Literal["none", "head", "all"] = "none"
    qkv_bias: bool = False
    out_bias: bool = False
    window: int = 0
    tied: bool = False
    epsilon: float = 1e-5
    score_width: int = 0

    @property
    def width(self) -> int:
        """Elements of a head."""
        return self.head_width or self.hidden // self.heads


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


def rotations(width: int, theta: float, length: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """Cosine and sine of every position's angles, each [length, width / 2], in the type of ``like``."""
    half = width // 2
    exponents = torch.arange(half, device=like.device, dtype=torch.float32) / half
    positions = torch.arange(length, device=like.device, dtype=torch.float32)
    angles = positions[:, None] * (theta**-exponents)
    return angles.cos().to(like.dtype), angles.sin().to(like.dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn the pairs (i, i + half) of the last dimension of x [rows, heads, length, width] that have an angle."""
    turning = 2 * cos.shape[-1]
    a, b = x[..., :turning].chunk(2, dim=-1)
    turned = (a * cos - b * sin, b * cos + a * sin)
    return torch.cat(turned if turning == x.shape[-1] else (*turned, x[..., turning:]), dim=-1)


def window_mask(length: int, window: int, device: torch.device) -> Tensor:
    """Whether each token sees each other, [length, length]: itself and those before it, as far as the window reaches."""
    positions = torch.arange(length, device=device)
    back = positions[:, None] - positions
    seen = back >= 0
    return seen & (back < window) if window else seen


class Attention(nn.Module):
    """Causal attention in which groups of query heads share keys and values."""

    def __init__(self, config: LlamaConfig, window: int = 0) -> None:
        super().__init__()
        self.width, self.window = config.width, window
        self.group = config.heads // config.kv_heads
        self.scale = config.score_width**-0.5 if config.score_width else None
        self.q = nn.Linear(config.hidden, config.heads * self.width, bias=config.qkv_bias)
        self.k = nn.Linear(config.hidden, config.kv_heads * self.width, bias=config.qkv_bias)
        self.v = nn.Linear(config.hidden, config.kv_heads * self.width, bias=config.qkv_bias)
        self.out = nn.Linear(config.heads * self.width, config.hidden, bias=config.out_bias)
        self.norm_q, self.norm_k = _norm(config, config.heads), _norm(config, config.kv_heads)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        q, k, v = (
            self.heads(p(x), n) for p, n in ((self.q, self.norm_q), (self.k, self.norm_k), (self.v, None))
        )
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        k, v, mask = self.seen(k, v)
        if self.group > 1:
            k, v = (t.unsqueeze(2).expand(-1, -1, self.group, -1, -1).flatten(1, 2) for t in (k, v))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None, scale=self.scale)
        result: Tensor = self.out(y.transpose(1, 2).flatten(2))
        return result

    def heads(self, x: Tensor, norm: RMSNorm | None) -> Tensor:
        """[rows, length, heads x width] to [rows, heads, length, width], normalised."""
        if norm is not None and norm.weight.shape[0] == x.shape[-1]:
            x, norm = norm(x), None
        x = x.unflatten(-1, (-1, self.width)).transpose(1, 2)
        return x if norm is None else norm(x)

    def seen(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Keys and values [rows, heads, length, width], and which of them a token sees; all before it without a mask."""
        mask = window_mask(k.shape[2], self.window, k.device) if self.window else None
        return k, v, mask


def _norm(config: LlamaConfig, num_heads: int) -> RMSNorm | None:
    if config.qk_norm == "none":
        return None
    return RMSNorm(config.width * (1 if config.qk_norm == "head" else num_heads), config.epsilon)


class Block(nn.Module):
    """Attention and the gated MLP, each normalised before and added to its input."""

    def __init__(self, config: LlamaConfig, window: int) -> None:
        super().__init__()
        self.norm_1 = RMSNorm(config.hidden, config.epsilon)
        self.attention = Attention(config, window)
        self.norm_2 = RMSNorm(config.hidden, config.epsilon)
        self.gate = nn.Linear(config.hidden, config.ffn, bias=False)
        self.up = nn.Linear(config.hidden, config.ffn, bias=False)
        self.down = nn.Linear(config.ffn, config.hidden, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.attention(self.norm_1(x), cos, sin)
        y = self.norm_2(x)
        result: Tensor = x + self.down(F.silu(self.gate(y)) * self.up(y))
        return result


class Llama(nn.Module):
    """Tokens [rows, length] to logits [rows, length, vocab].

    Parameters
    ----------
    config : sizes.
    blocks : layers; by default all are `Block`.
    """

    def __init__(self, config: LlamaConfig, blocks: Iterable[nn.Module] | None = None) -> None:
        super().__init__()
        self.config = config
        self.tokens = nn.Embedding(config.vocab, config.hidden)
        if blocks is None:
            blocks = (Block(config, config.window) for _ in range(config.layers))
        self.blocks = nn.ModuleList(blocks)
        self.norm = RMSNorm(config.hidden, config.epsilon)
        self.head = None if config.tied else nn.Linear(config.hidden, config.vocab, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens)
        cos, sin = rotations(self.config.rotary or self.config.width, self.config.theta, tokens.shape[1], x)
        for block in self.blocks:
            x = block(x, cos, sin)
        return self.scores(x)

    def scores(self, x: Tensor) -> Tensor:
        """Return the logits of what the last block computed."""
        x = self.norm(x)
        result: Tensor = F.linear(x, self.tokens.weight) if self.head is None else self.head(x)
        return result


def build(name: str, config: LlamaConfig, rows: int) -> Model:
    """A Llama with next-token cross-entropy on ``rows`` sequences of full length."""
    return Model(name, Llama(config), next_token_loss, token_batch(rows, config.context, config.vocab))
