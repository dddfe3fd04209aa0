"""Decoders of today that are served: mixtures of experts in most layers, latent attention, windows.

Positions are not scaled beyond the context of pre-training (``rope_scaling``), which changes values and no shape.

References
----------
Jiang et al., "Mixtral of Experts", arXiv 2401.04088.
Yang et al., "Qwen3 Technical Report", arXiv 2505.09388, table 2.
DeepSeek-AI, "DeepSeek-V3 Technical Report", arXiv 2412.19437.
OpenAI, "gpt-oss-120b & gpt-oss-20b Model Card", arXiv 2508.10925.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainyard.program.model import Model
from trainyard.zoo.common import next_token_loss, token_batch
from trainyard.zoo.latent import LatentAttention, LatentConfig
from trainyard.zoo.llama import Attention, Llama, LlamaConfig, RMSNorm, rotations, window_mask
from trainyard.zoo.mixture import GatedMLP, Mixture, MixtureConfig


@dataclass(frozen=True, kw_only=True)
class DecoderConfig(LlamaConfig):
    """Sizes of a decoder; ``ffn`` is the width of the MLP of layers without a mixture.

    Attributes
    ----------
    mixture : of the layers that have one.
    dense_layers : numbers of the layers that have none.
    latent : widths of latent attention; by default attention is as in Llama.
    windows : of each layer, where layers have different ones.
    sinks : whether every head of queries has a score for no token, as in gpt-oss.
    """

    mixture: MixtureConfig
    dense_layers: tuple[int, ...] = ()
    latent: LatentConfig | None = None
    windows: tuple[int, ...] = ()
    sinks: bool = False


class SinkAttention(Attention):
    """Causal attention in which a part of every token's weights may go to no token."""

    def __init__(self, config: DecoderConfig, window: int) -> None:
        super().__init__(config, window)
        self.sinks = nn.Parameter(torch.zeros(config.heads))

    def seen(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        # A key and a value of zeros stand for no token; its score is that of the sink.
        length, heads = k.shape[2], self.sinks.shape[0]
        hidden = ~window_mask(length, self.window, k.device)
        scores = k.new_zeros(length, length).masked_fill(hidden, float("-inf"))
        sinks = self.sinks.to(k.dtype).view(1, heads, 1, 1).expand(1, heads, length, 1)
        mask = torch.cat((scores.expand(1, heads, length, length), sinks), -1)
        return F.pad(k, (0, 0, 0, 1)), F.pad(v, (0, 0, 0, 1)), mask


class DecoderBlock(nn.Module):
    """Attention and an MLP or a mixture, each normalised before and added to its input."""

    def __init__(self, config: DecoderConfig, number: int) -> None:
        super().__init__()
        self.norm_1 = RMSNorm(config.hidden, config.epsilon)
        self.attention = _attention(config, number)
        self.norm_2 = RMSNorm(config.hidden, config.epsilon)
        self.mlp: nn.Module = (
            GatedMLP(config.hidden, config.ffn)
            if number in config.dense_layers
            else Mixture(config.hidden, config.mixture)
        )

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.attention(self.norm_1(x), cos, sin)
        result: Tensor = x + self.mlp(self.norm_2(x))
        return result


def _attention(config: DecoderConfig, number: int) -> nn.Module:
    if config.latent is not None:
        return LatentAttention(config.hidden, config.heads, config.latent, config.epsilon)
    window = config.windows[number] if config.windows else config.window
    return SinkAttention(config, window) if config.sinks else Attention(config, window)


class Decoder(nn.Module):
    """Tokens [rows, length] to logits [rows, length, vocab]."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.config = config
        self.tokens = nn.Embedding(config.vocab, config.hidden)
        self.blocks = nn.ModuleList(DecoderBlock(config, number) for number in range(config.layers))
        self.norm = RMSNorm(config.hidden, config.epsilon)
        self.head = None if config.tied else nn.Linear(config.hidden, config.vocab, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens)
        config = self.config
        turning = config.latent.rotary if config.latent is not None else config.rotary or config.width
        cos, sin = rotations(turning, config.theta, tokens.shape[1], x)
        for block in self.blocks:
            x = block(x, cos, sin)
        x = self.norm(x)
        result: Tensor = F.linear(x, self.tokens.weight) if self.head is None else self.head(x)
        return result


def build(name: str, config: DecoderConfig, rows: int) -> Model:
    """A decoder with next-token cross-entropy on ``rows`` sequences of full length."""
    return Model(name, Decoder(config), next_token_loss, token_batch(rows, config.context, config.vocab))


def with_heads_for_each(model: Model, num_devices: int) -> Model:
    """The same model, with a head of keys and values for each of so many devices.

    Where there are fewer, servers put copies of a head on several devices. So each device has as many weights, and keeps
    as much of a token, as if there were more heads. A model of another kind, or that cannot be split so, is returned as
    it is.
    """
    module = model.module
    if not isinstance(module, Llama | Decoder):
        return model
    config: Any = module.config
    is_latent = isinstance(config, DecoderConfig) and config.latent is not None
    if (
        is_latent
        or num_devices <= config.kv_heads
        or num_devices % config.kv_heads
        or config.heads % num_devices
    ):
        return model
    return replace(model, module=type(module)(replace(config, kv_heads=num_devices)))
