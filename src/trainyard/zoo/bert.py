"""BERT: an encoder-only transformer trained to restore masked tokens.

The masked-language-model part of BERT's pre-training; next-sentence prediction is left out, as RoBERTa does.
Sequences are full, so attention has no mask.

References
----------
Devlin et al., "BERT: Pre-training of Deep Bidirectional Transformers for Language Understanding", NAACL 2019.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainyard.program.model import Model
from trainyard.zoo.common import scattered


@dataclass(frozen=True)
class BertConfig:
    """Sizes of a BERT; the defaults are BERT base.

    Attributes
    ----------
    predictions : masked tokens per sequence; a fixed number, so that every row weighs the same.
    """

    vocab: int = 30522
    context: int = 512
    layers: int = 12
    hidden: int = 768
    heads: int = 12
    predictions: int = 76
    dropout: float = 0.1


class Attention(nn.Module):
    """Self-attention over the whole sequence."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.dropout = config.dropout
        self.q = nn.Linear(config.hidden, config.hidden)
        self.k = nn.Linear(config.hidden, config.hidden)
        self.v = nn.Linear(config.hidden, config.hidden)
        self.out = nn.Linear(config.hidden, config.hidden)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (p(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for p in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=self.dropout if self.training else 0.0)
        result: Tensor = self.out(y.transpose(1, 2).flatten(2))
        return result


class Block(nn.Module):
    """Attention and a four times wider MLP, each added to its input and then normalised."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.attention = Attention(config)
        self.norm_1 = nn.LayerNorm(config.hidden, eps=1e-12)
        self.up = nn.Linear(config.hidden, 4 * config.hidden)
        self.down = nn.Linear(4 * config.hidden, config.hidden)
        self.norm_2 = nn.LayerNorm(config.hidden, eps=1e-12)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm_1(x + self.dropout(self.attention(x)))
        result: Tensor = self.norm_2(x + self.dropout(self.down(F.gelu(self.up(x)))))
        return result


class Bert(nn.Module):
    """Tokens and segments [rows, length], places [rows, predictions] to logits [rows, predictions, vocab]."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.tokens = nn.Embedding(config.vocab, config.hidden)
        self.positions = nn.Embedding(config.context, config.hidden)
        self.segments = nn.Embedding(2, config.hidden)
        self.norm = nn.LayerNorm(config.hidden, eps=1e-12)
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.transform = nn.Linear(config.hidden, config.hidden)
        self.transform_norm = nn.LayerNorm(config.hidden, eps=1e-12)
        self.bias = nn.Parameter(nn.init.zeros_(torch.empty(config.vocab)))

    def forward(self, tokens: Tensor, segments: Tensor, places: Tensor) -> Tensor:
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.tokens(tokens) + self.positions(positions) + self.segments(segments)
        x = self.dropout(self.norm(x))
        for block in self.blocks:
            x = block(x)
        masked = x.gather(1, places.unsqueeze(-1).expand(-1, -1, x.shape[-1]))
        y = self.transform_norm(F.gelu(self.transform(masked)))
        return F.linear(y, self.tokens.weight, self.bias)


def loss(module: nn.Module, batch: Any) -> Tensor:
    """Mean cross-entropy (nats) of the masked tokens."""
    logits = module(batch["tokens"], batch["segments"], batch["places"])
    return F.cross_entropy(logits.flatten(0, 1), batch["targets"].flatten())


def build(name: str, config: BertConfig, rows: int) -> Model:
    """A BERT with the masked-language-model loss on ``rows`` sequences of full length."""
    batch = {
        "tokens": scattered((rows, config.context), config.vocab),
        "segments": scattered((rows, config.context), 2, salt=1),
        "places": scattered((rows, config.predictions), config.context, salt=2),
        "targets": scattered((rows, config.predictions), config.vocab, salt=3),
    }
    return Model(name, Bert(config), loss, batch)
