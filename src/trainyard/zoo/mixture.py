"""A mixture of experts without a capacity, as servers run it: every token goes to the experts that it chooses.

Tokens are sorted by expert, and multiplied by the matrices of their experts in one grouped product.

References
----------
Jiang et al., "Mixtral of Experts", arXiv 2401.04088 (scores by softmax).
DeepSeek-AI, "DeepSeek-V3 Technical Report", arXiv 2412.19437, section 2.1.2 (by sigmoid; a bias for the choice only).
DeepSeek-AI, "DeepSeek-V2", arXiv 2405.04434, section 2.2.2 (experts in groups, of which a token may use a few).
OpenAI, "gpt-oss-120b & gpt-oss-20b Model Card", arXiv 2508.10925 (experts with biases, bounded).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainyard.program.grouped_product import grouped_product

_SHARPNESS = 1.702  # of the sigmoid of gpt-oss, which makes its product nearly a GELU
_BOUND = 7.0  # of its gates


@dataclass(frozen=True)
class MixtureConfig:
    """Sizes of a mixture, and how a token chooses.

    Attributes
    ----------
    experts : MLPs to choose from.
    top : experts of a token.
    width : of an expert's MLP.
    scores : function that makes scores of the router's product.
    normalised : whether the weights of a token's experts are divided by their sum.
    scale : by which weights are multiplied.
    groups, top_groups : into how many groups the experts are dealt, and of how many a token may choose.
    group_best : by the sum of how many of its best scores a group is chosen.
    choice_bias : whether a bias is added to scores where experts are chosen, and only there.
    shared : width of an MLP that all tokens use; 0 where there is none.
    bounded : whether experts and router have biases, and gates are bounded, as in gpt-oss.
    """

    experts: int
    top: int
    width: int
    scores: Literal["softmax", "sigmoid"] = "softmax"
    normalised: bool = True
    scale: float = 1.0
    groups: int = 1
    top_groups: int = 1
    group_best: int = 2
    choice_bias: bool = False
    shared: int = 0
    bounded: bool = False


class GatedMLP(nn.Module):
    """Two products with a gate between them, on every token."""

    def __init__(self, hidden: int, width: int) -> None:
        super().__init__()
        self.gate = nn.Linear(hidden, width, bias=False)
        self.up = nn.Linear(hidden, width, bias=False)
        self.down = nn.Linear(width, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.down(F.silu(self.gate(x)) * self.up(x))
        return result


class Router(nn.Module):
    """Tokens [tokens, hidden] to the weights and the numbers of their experts, each [tokens, top]."""

    def __init__(self, hidden: int, config: MixtureConfig) -> None:
        super().__init__()
        self.config = config
        self.product = nn.Linear(hidden, config.experts, bias=config.bounded)
        self.choice_bias = nn.Parameter(torch.zeros(config.experts)) if config.choice_bias else None

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        config = self.config
        logits = self.product(x).float()
        scores = F.softmax(logits, -1) if config.scores == "softmax" else logits.sigmoid()
        judged = scores if self.choice_bias is None else scores + self.choice_bias
        if config.groups > 1:
            judged = self._within_groups(judged)
        chosen = judged.topk(config.top, -1).indices
        weights = scores.gather(-1, chosen)
        if config.normalised:
            weights = weights / weights.sum(-1, keepdim=True)
        return (weights * config.scale).to(x.dtype), chosen

    def _within_groups(self, judged: Tensor) -> Tensor:
        """Minus infinity where an expert is in none of a token's best groups."""
        config = self.config
        grouped = judged.unflatten(-1, (config.groups, -1))
        of_group = grouped.topk(config.group_best, -1).values.sum(-1)
        least = of_group.topk(config.top_groups, -1).values[..., -1:]
        allowed: Tensor = grouped.masked_fill((of_group < least).unsqueeze(-1), float("-inf"))
        return allowed.flatten(-2)


class Mixture(nn.Module):
    """[rows, length, hidden] to the same shape."""

    def __init__(self, hidden: int, config: MixtureConfig) -> None:
        super().__init__()
        self.config = config
        self.router = Router(hidden, config)
        self.gate = _matrices(config.experts, hidden, config.width)
        self.up = _matrices(config.experts, hidden, config.width)
        self.down = _matrices(config.experts, config.width, hidden)
        if config.bounded:
            self.gate_bias = nn.Parameter(torch.zeros(config.experts, config.width))
            self.up_bias = nn.Parameter(torch.zeros(config.experts, config.width))
            self.down_bias = nn.Parameter(torch.zeros(config.experts, hidden))
        self.shared = GatedMLP(hidden, config.shared) if config.shared else None

    def forward(self, x: Tensor) -> Tensor:
        tokens, top = x.flatten(0, 1), self.config.top
        weights, chosen = self.router(tokens)
        experts, order = chosen.flatten().sort(stable=True)
        rows = tokens[order // top]
        y = grouped_product(experts, self._gated(experts, rows), self.down)
        back = y[order.argsort()].unflatten(0, (-1, top))
        mixed: Tensor = (back * weights.unsqueeze(-1)).sum(1).to(x.dtype)  # autocast adds up in 32 bits
        if self.shared is not None:
            mixed = mixed + self.shared(tokens)
        if self.config.bounded:
            shares = weights.new_zeros(tokens.shape[0], self.config.experts).scatter(1, chosen, weights)
            mixed = mixed + shares @ self.down_bias
        return mixed.view_as(x)

    def _gated(self, experts: Tensor, rows: Tensor) -> Tensor:
        gate, up = grouped_product(experts, rows, self.gate), grouped_product(experts, rows, self.up)
        if not self.config.bounded:
            return F.silu(gate) * up
        gate, up = gate + self.gate_bias[experts], up + self.up_bias[experts]
        gate, up = gate.clamp(max=_BOUND), up.clamp(-_BOUND, _BOUND)
        result: Tensor = gate * torch.sigmoid(_SHARPNESS * gate) * (up + 1)
        return result


def _matrices(experts: int, width: int, columns: int) -> nn.Parameter:
    return nn.Parameter(nn.init.normal_(torch.empty(experts, width, columns), std=0.02))
