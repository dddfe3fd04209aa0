"""GPT: a decoder-only transformer with learned positions, as GPT-2 and GPT-3.

References
----------
Radford et al., "Language Models are Unsupervised Multitask Learners", 2019.
Brown et al., "Language Models are Few-Shot Learners", NeurIPS 2020.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainyard.program.model import Model
from trainyard.zoo.common import next_token_loss, set_init_std, token_batch


@dataclass(frozen=True)
class GPTConfig:
    """Sizes of a GPT; the defaults are GPT-2 small.

    Attributes
    ----------
    vocab, context : tokens known, and the longest sequence.
    layers, hidden, heads : blocks, width, and attention heads (``hidden / heads`` wide each).
    dropout : probability of zeroing an activation: embeddings, attention weights, and both residual branches.
    widening : width of the MLP as a multiple of ``hidden``.
    """

    vocab: int = 50257
    context: int = 1024
    layers: int = 12
    hidden: int = 768
    heads: int = 12
    dropout: float = 0.1
    widening: int = 4


class Attention(nn.Module):
    """Causal self-attention with one projection for queries, keys and values."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.dropout = config.dropout
        self.qkv = nn.Linear(config.hidden, 3 * config.hidden)
        self.out = nn.Linear(config.hidden, config.hidden)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in self.qkv(x).split(x.shape[-1], dim=-1)
        )
        dropout = self.dropout if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True)
        result: Tensor = self.out(y.transpose(1, 2).flatten(2))
        return result


class Block(nn.Module):
    """Attention and a wider MLP, each normalised before and added to its input."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.norm_1 = nn.LayerNorm(config.hidden)
        self.attention = Attention(config)
        self.norm_2 = nn.LayerNorm(config.hidden)
        self.up = nn.Linear(config.hidden, config.widening * config.hidden)
        self.down = nn.Linear(config.widening * config.hidden, config.hidden)
        self.dropout = nn.Dropout(config.dropout)
        # GPT-2 section 2.3: what adds to the residual stream starts smaller the deeper the model.
        set_init_std(0.02 * (2 * config.layers) ** -0.5, self.attention.out, self.down)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.dropout(self.attention(self.norm_1(x)))
        result: Tensor = x + self.dropout(self.down(F.gelu(self.up(self.norm_2(x)), approximate="tanh")))
        return result


class GPT(nn.Module):
    """Tokens [rows, length] to logits [rows, length, vocab]; the output projection is the embedding."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.tokens = nn.Embedding(config.vocab, config.hidden)
        self.positions = nn.Embedding(config.context, config.hidden)
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.hidden)

    def forward(self, tokens: Tensor) -> Tensor:
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.dropout(self.tokens(tokens) + self.positions(positions))
        for block in self.blocks:
            x = block(x)
        return F.linear(self.norm(x), self.tokens.weight)


def build(name: str, config: GPTConfig, rows: int) -> Model:
    """A GPT with next-token cross-entropy on ``rows`` sequences of full length."""
    return Model(name, GPT(config), next_token_loss, token_batch(rows, config.context, config.vocab))
