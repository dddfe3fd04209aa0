"""A transformer whose every other MLP is a mixture of experts, routed as in GShard and Switch.

A decoder-only language model. Each row of the batch is a routing group with a fixed capacity per expert, so
rows do not influence each other and the shapes do not depend on the routing.

References
----------
Lepikhin et al., "GShard: Scaling Giant Models with Conditional Computation", ICLR 2021, algorithm 1.
Fedus, Zoph and Shazeer, "Switch Transformers", JMLR 2022 (one expert per token).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainyard.program.model import Model
from trainyard.zoo.common import token_batch
from trainyard.zoo.gpt import Attention, Block, GPTConfig


@dataclass(frozen=True)
class MoEConfig(GPTConfig):
    """Sizes of a mixture of experts; the defaults have 1.3 billion parameters (Alpa's evaluation, OSDI 2022).

    Attributes
    ----------
    experts : MLPs to choose from in each mixture.
    top : experts per token, 1 or 2.
    capacity_factor : slots per expert and row, as a multiple of ``top * length / experts``.
    balance : weight of the load-balancing loss.
    """

    vocab: int = 32000
    context: int = 1024
    layers: int = 16
    hidden: int = 768
    heads: int = 16
    widening: int = 8
    experts: int = 16
    top: int = 2
    capacity_factor: float = 1.0
    balance: float = 0.01


def one_hot(index: Tensor, count: int, dtype: torch.dtype) -> Tensor:
    """1 where the index along a new last dimension of size ``count`` is the given one."""
    return (index.unsqueeze(-1) == torch.arange(count, device=index.device)).to(dtype)


def route(logits: Tensor, top: int, capacity: int) -> tuple[Tensor, Tensor]:
    """Give every token slots at its best experts while there are any, in the order of the sequence.

    Parameters
    ----------
    logits : [rows, length, experts].
    top : choices per token.
    capacity : slots per expert and row.

    Returns
    -------
    combine : [rows, length, experts, capacity]: weight of the token in the slot; zero where it is not.
    balance : scalar, 1 if the tokens' first choices are spread evenly.
    """
    gates = F.softmax(logits.float(), -1)
    experts = gates.shape[-1]
    left = gates
    taken = torch.zeros_like(gates[:, :1])
    balance: Tensor | None = None
    total = torch.zeros_like(gates[..., 0])
    parts = []
    for _ in range(top):
        chosen = one_hot(left.argmax(-1), experts, gates.dtype)
        left = left.masked_fill(chosen > 0, -math.inf)
        if balance is None:
            balance = experts * (chosen.mean(1) * gates.mean(1)).sum(-1).mean()
        slot = ((chosen.cumsum(1) - 1 + taken) * chosen).sum(-1)
        taken = taken + chosen.sum(1, keepdim=True)
        weight = (gates * chosen).sum(-1)
        total = total + weight
        # A slot beyond the capacity matches none: the token is passed on by the residual connection.
        parts.append((weight, chosen, one_hot(slot, capacity, gates.dtype)))
    assert balance is not None
    # With one expert its gate is the weight, so that the router learns; with two they are normalised.
    scale = 1.0 if top == 1 else 1.0 / (total + 1e-9)
    spread = [(w * scale)[..., None, None] * c.unsqueeze(-1) * s.unsqueeze(-2) for w, c, s in parts]
    return torch.stack(spread).sum(0) if top > 1 else spread[0], balance


class Experts(nn.Module):
    """The mixture: [rows, length, hidden] to the same shape, and its balance."""

    def __init__(self, config: MoEConfig) -> None:
        super().__init__()
        self.top = config.top
        self.capacity = math.ceil(config.capacity_factor * config.top * config.context / config.experts)
        shape = (config.experts, config.hidden, config.widening * config.hidden)
        self.router = nn.Linear(config.hidden, config.experts, bias=False)
        self.up = nn.Parameter(nn.init.normal_(torch.empty(shape), std=0.02))
        self.down = nn.Parameter(nn.init.normal_(torch.empty(shape).transpose(1, 2).contiguous(), std=0.02))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        combine, balance = route(self.router(x), self.top, self.capacity)
        dispatch = (combine > 0).to(x.dtype)
        slots = torch.einsum("rlec,rlh->erch", dispatch, x)
        y = F.gelu(torch.einsum("erch,ehf->ercf", slots, self.up), approximate="tanh")
        y = torch.einsum("ercf,efh->erch", y, self.down)
        return torch.einsum("rlec,erch->rlh", combine.to(x.dtype), y), balance


class MoEBlock(nn.Module):
    """Attention and a mixture of experts, each normalised before and added to its input."""

    def __init__(self, config: MoEConfig) -> None:
        super().__init__()
        self.norm_1 = nn.LayerNorm(config.hidden)
        self.attention = Attention(config)
        self.norm_2 = nn.LayerNorm(config.hidden)
        self.experts = Experts(config)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = x + self.dropout(self.attention(self.norm_1(x)))
        y, balance = self.experts(self.norm_2(x))
        return x + self.dropout(y), balance


class MoE(nn.Module):
    """Tokens [rows, length] to logits [rows, length, vocab] and the mean balance of the mixtures."""

    def __init__(self, config: MoEConfig) -> None:
        super().__init__()
        self.tokens = nn.Embedding(config.vocab, config.hidden)
        self.positions = nn.Embedding(config.context, config.hidden)
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(
            MoEBlock(config) if depth % 2 else Block(config) for depth in range(config.layers)
        )
        self.norm = nn.LayerNorm(config.hidden)

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.dropout(self.tokens(tokens) + self.positions(positions))
        balances = []
        for block in self.blocks:
            x = block(x)
            if isinstance(x, tuple):
                x, balance = x
                balances.append(balance)
        return F.linear(self.norm(x), self.tokens.weight), torch.stack(balances).mean()


def build(name: str, config: MoEConfig, rows: int) -> Model:
    """A mixture of experts on ``rows`` sequences; beside the loss it reports its two parts."""

    def loss(module: nn.Module, batch: Any) -> tuple[Tensor, dict[str, Tensor]]:
        logits, balance = module(batch["tokens"])
        entropy = F.cross_entropy(logits.flatten(0, 1), batch["targets"].flatten())
        return entropy + config.balance * balance, {"cross_entropy": entropy, "balance": balance}

    return Model(name, MoE(config), loss, token_batch(rows, config.context, config.vocab))
