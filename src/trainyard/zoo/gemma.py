"""Gemma 3, its language model: most layers see a window of tokens, and every block normalises its inputs and its outputs.

Fidelity: the encoder of images is left out. Positions are not scaled beyond the context of pre-training
(``rope_scaling``), which changes values and no shape. Norms multiply by weights that begin at 1; published files hold
these weights less 1. Scores have no soft caps, unlike in Gemma 2.

References
----------
Gemma Team, "Gemma 3 Technical Report", arXiv 2503.19786: section 2, and table 1 for the number of parameters.
google/gemma_pytorch, ``gemma/config.py`` (sizes) and ``gemma/model.py`` (blocks).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from trainyard.program.model import Model
from trainyard.zoo.common import next_token_loss, token_batch
from trainyard.zoo.llama import Block, Llama, LlamaConfig, RMSNorm, rotations

_LAYERS_PER_GLOBAL = 6  # each sixth layer sees all tokens


@dataclass(frozen=True, kw_only=True)
class GemmaConfig(LlamaConfig):
    """Sizes of a Gemma 3; ``theta`` is the base of layers that see all tokens.

    Attributes
    ----------
    windows : of each layer, in tokens; 0 in layers that see all.
    local_theta : base of the rotary wavelengths in layers with a window.
    """

    windows: tuple[int, ...]
    local_theta: float = 10000.0


def gemma_windows(layers: int, window: int, layers_per_global: int = _LAYERS_PER_GLOBAL) -> tuple[int, ...]:
    """Return the window of each layer: 0 in each sixth layer, which sees all tokens."""
    return tuple(window if (number + 1) % layers_per_global else 0 for number in range(layers))


class GemmaBlock(Block):
    """Attention and the gated MLP, each normalised before and after, and added to its input."""

    def __init__(self, config: GemmaConfig, number: int) -> None:
        super().__init__(config, config.windows[number])
        self.after_attention = RMSNorm(config.hidden, config.epsilon)
        self.after_mlp = RMSNorm(config.hidden, config.epsilon)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.after_attention(self.attention(self.norm_1(x), cos, sin))
        y = self.norm_2(x)
        y = self.down(F.gelu(self.gate(y), approximate="tanh") * self.up(y))
        result: Tensor = x + self.after_mlp(y)
        return result


class Gemma(Llama):
    """Tokens [rows, length] to logits [rows, length, vocab]."""

    def __init__(self, config: GemmaConfig) -> None:
        super().__init__(config, [GemmaBlock(config, number) for number in range(config.layers)])
        self.windows, self.local_theta = config.windows, config.local_theta

    def forward(self, tokens: Tensor) -> Tensor:
        config, x = self.config, self.tokens(tokens)
        x = x * config.hidden**0.5
        local, everywhere = (
            rotations(config.width, theta, tokens.shape[1], x) for theta in (self.local_theta, config.theta)
        )
        for block, window in zip(self.blocks, self.windows, strict=True):
            x = block(x, *(local if window else everywhere))
        return self.scores(x)


def build(name: str, config: GemmaConfig, rows: int) -> Model:
    """Build a Gemma 3 with next-token cross-entropy on ``rows`` sequences of full length."""
    return Model(name, Gemma(config), next_token_loss, token_batch(rows, config.context, config.vocab))
