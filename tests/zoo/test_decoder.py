"""Decoders that are served: a mixture computes what a loop over experts does, and sizes are as published."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from trainyard.zoo.decoder import DecoderConfig, SinkAttention
from trainyard.zoo.latent import LatentAttention, LatentConfig
from trainyard.zoo.llama import Attention, LlamaConfig, rotate, rotations
from trainyard.zoo.mixture import Mixture, MixtureConfig

MIXTRAL = MixtureConfig(8, 2, 24)
DEEPSEEK = MixtureConfig(16, 4, 24, "sigmoid", scale=2.5, groups=4, top_groups=2, choice_bias=True, shared=40)
GPT_OSS = MixtureConfig(8, 4, 24, bounded=True)


def filled(module: torch.nn.Module) -> torch.nn.Module:
    """A module whose parameters are all random."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.4)
    return module.double()


def one_token(mixture: Mixture, x: Tensor) -> Tensor:
    """What a mixture makes of one token [hidden], by a loop over its experts."""
    config, router = mixture.config, mixture.router
    logits = router.product(x)
    scores = logits.softmax(-1) if config.scores == "softmax" else logits.sigmoid()
    judged = scores if router.choice_bias is None else scores + router.choice_bias
    size = config.experts // config.groups
    best = [sum(sorted(judged[g * size :][:size].tolist())[-2:]) for g in range(config.groups)]
    allowed = sorted(range(config.groups), key=lambda g: -best[g])[: config.top_groups]
    numbers = [e for e in range(config.experts) if e // size in allowed]
    chosen = sorted(numbers, key=lambda e: -float(judged[e]))[: config.top]
    total = sum(float(scores[e]) for e in chosen) if config.normalised else 1.0
    result = torch.zeros_like(x)
    for expert in chosen:
        gate, up = x @ mixture.gate[expert], x @ mixture.up[expert]
        if config.bounded:
            gate = (gate + mixture.gate_bias[expert]).clamp(max=7)
            up = (up + mixture.up_bias[expert]).clamp(-7, 7)
            y = (gate * torch.sigmoid(1.702 * gate) * (up + 1)) @ mixture.down[expert]
            y = y + mixture.down_bias[expert]
        else:
            y = (F.silu(gate) * up) @ mixture.down[expert]
        result = result + y * float(scores[expert]) / total * config.scale
    return result if mixture.shared is None else result + mixture.shared(x)


@pytest.mark.parametrize(
    "config",
    [MIXTRAL, replace(MIXTRAL, normalised=False), DEEPSEEK, GPT_OSS],
    ids=["mixtral", "not normalised", "deepseek", "gpt-oss"],
)
def test_a_mixture_is_a_loop_over_experts(config):
    mixture = filled(Mixture(32, config))
    x = torch.randn(2, 9, 32, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    with torch.no_grad():
        wanted = torch.stack([one_token(mixture, token) for token in x.flatten(0, 1)])
        assert torch.allclose(mixture(x).flatten(0, 1), wanted, rtol=1e-5, atol=1e-6)


def test_a_mixture_computes_in_16_bits():
    mixture = filled(Mixture(32, MIXTRAL))
    x = torch.randn(2, 9, 32, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    with torch.no_grad():
        wanted = mixture(x)
        found = mixture.to(torch.bfloat16)(x.to(torch.bfloat16))
    error = (found.double() - wanted).norm(dim=-1) / wanted.norm(dim=-1)
    assert found.dtype == torch.bfloat16
    assert error.median() < 0.03  # a token whose choice is close may go to another expert


def test_latent_attention_is_attention_of_the_heads_that_it_expands_to():
    config = LatentConfig(24, 16, 4, 8, 6)
    attention = filled(LatentAttention(32, 3, config, 1e-6))
    x = torch.randn(1, 7, 32, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    cos, sin = rotations(4, 10000.0, 7, x)
    with torch.no_grad():
        found = attention(x, cos, sin)
        queries = attention.q(attention.q_norm(attention.q_down(x)))[0].view(7, 3, 12)
        latent, turning = attention.kv_down(x)[0].split((16, 4), -1)
        latent, turned = attention.kv_norm(latent), rotate(turning, cos, sin)
        makes_k, makes_v = attention.kv.weight.view(3, 14, 16).split((8, 6), 1)
        heads = []
        for head in range(3):
            # As a server decodes: the query goes through what would make keys, and meets the latent vectors.
            plain = queries[:, head, :8] @ makes_k[head]
            scores = plain @ latent.T + rotate(queries[:, head, 8:], cos, sin) @ turned.T
            scores = scores / 12**0.5 + torch.full((7, 7), float("-inf"), dtype=torch.float64).triu(1)
            heads.append(scores.softmax(-1) @ latent @ makes_v[head].T)
        wanted = attention.out(torch.cat(heads, -1))
    assert torch.allclose(found[0], wanted, atol=1e-5)


def test_a_sink_takes_a_part_of_the_weights_and_a_window_hides_what_is_far():
    config = DecoderConfig(64, 16, 1, 32, 4, 2, 64, mixture=MIXTRAL, qkv_bias=True, out_bias=True, sinks=True)
    attention = filled(SinkAttention(config, window=3))
    x = torch.randn(1, 7, 32, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    cos, sin = rotations(8, 10000.0, 7, x)
    with torch.no_grad():
        found = attention(x, cos, sin)[0, -1]
        q, k, v = (p(x)[0].view(7, -1, 8).transpose(0, 1) for p in (attention.q, attention.k, attention.v))
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        heads = []
        for head in range(4):
            scores = q[head, -1] @ k[head // 2, 4:].T / 8**0.5
            weights = torch.cat((scores, attention.sinks[head : head + 1])).softmax(-1)[:-1]
            heads.append(weights @ v[head // 2, 4:])
        wanted = attention.out(torch.cat(heads))
    assert torch.allclose(found, wanted, atol=1e-5)


def test_a_part_of_a_head_may_turn_and_all_heads_may_be_normalised_together():
    config = LlamaConfig(64, 16, 1, 32, 4, 2, 64, rotary=4, qk_norm="all")
    attention = filled(Attention(config))
    x = torch.randn(1, 7, 32, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    cos, sin = rotations(4, 10000.0, 7, x)
    with torch.no_grad():
        found = attention(x, cos, sin)[0, -1]
        q = attention.norm_q(attention.q(x)[0]).view(7, 4, 8)
        k = attention.norm_k(attention.k(x)[0]).view(7, 2, 8)
        v = attention.v(x)[0].view(7, 2, 8)
        heads = []
        for head in range(4):
            scores = torch.zeros(7, dtype=torch.float64)
            for place in range(7):
                turned = [q[-1, head].clone(), k[place, head // 2].clone()]
                for vector, at in zip(turned, (6, place), strict=True):
                    for pair in range(2):
                        a, b = vector[pair].item(), vector[pair + 2].item()
                        angle = at * 10000.0 ** (-pair / 2)
                        vector[pair] = a * math.cos(angle) - b * math.sin(angle)
                        vector[pair + 2] = b * math.cos(angle) + a * math.sin(angle)
                scores[place] = turned[0] @ turned[1] / 8**0.5
            heads.append(scores.softmax(0) @ v[:, head // 2])
        wanted = attention.out(torch.cat(heads))
    assert torch.allclose(found, wanted, atol=1e-5)
