"""Gemma 3: the logits of transformers' model with the same weights, and the sizes that are published."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from trainyard.reading import ReadingError
from trainyard.serve.run.trained.zoo_weights import LLAMA_NAMES
from trainyard.zoo import build
from trainyard.zoo.gemma import Gemma, GemmaConfig, gemma_windows
from trainyard.zoo.hugging_face import read_config
from trainyard.zoo.registry import ENTRIES

SMALL = GemmaConfig(
    *(96, 64, 7, 32, 4, 2, 48, 1e6),
    head_width=16,
    qk_norm="head",
    tied=True,
    epsilon=1e-6,
    score_width=24,
    windows=gemma_windows(7, 5),
)
NAMES = {
    **LLAMA_NAMES,
    "after_attention": "post_attention_layernorm",
    "norm_2": "pre_feedforward_layernorm",
    "after_mlp": "post_feedforward_layernorm",
}


def hugging_face(config: GemmaConfig, **more: Any) -> dict[str, Any]:
    """The configuration of a Gemma 3 in transformers."""
    return {
        "model_type": "gemma3_text",
        "vocab_size": config.vocab,
        "max_position_embeddings": config.context,
        "num_hidden_layers": config.layers,
        "hidden_size": config.hidden,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.width,
        "intermediate_size": config.ffn,
        "query_pre_attn_scalar": config.score_width or config.width,
        "sliding_window": max(config.windows),
        **more,
    }


def written(folder: Path, values: object) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps(values))
    return path


def renamed(path: str) -> str:
    """The name that transformers has for a weight of the zoo."""
    layer, kind = path.rsplit(".", 1)
    block = re.fullmatch(r"blocks\.(\d+)\.(.+)", layer)
    return f"model.layers.{block[1]}.{NAMES[block[2]]}.{kind}" if block else f"{NAMES[layer]}.{kind}"


def test_logits_are_those_of_transformers() -> None:
    transformers = pytest.importorskip(
        "transformers", reason="needs transformers: pip install 'trainyard-ml[server]'"
    )
    fields = hugging_face(SMALL)
    fields.pop("model_type")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        own = Gemma(SMALL)
        with torch.no_grad():
            for weight in own.parameters():
                weight.add_(torch.randn_like(weight) * 0.2)
    config = transformers.Gemma3TextConfig(**fields, attn_implementation="eager")
    other = transformers.Gemma3ForCausalLM(config).eval()
    # Norms of transformers multiply by 1 more than their weights.
    weights = {
        renamed(path): w - 1 if "norm" in path or "after" in path else w for path, w in own.named_parameters()
    }
    missing = other.load_state_dict(weights, strict=False)
    assert missing.missing_keys == ["lm_head.weight"]  # tied
    assert missing.unexpected_keys == []
    tokens = torch.arange(23)[None] * 37 % SMALL.vocab  # longer than the windows
    with torch.no_grad():
        assert torch.allclose(own(tokens), other(tokens).logits, rtol=1e-4, atol=1e-4)
        unlike = Gemma(replace(SMALL, windows=(0,) * 7))
        unlike.load_state_dict(own.state_dict())
        assert not torch.allclose(unlike(tokens), own(tokens), atol=1e-2)


@pytest.mark.parametrize(
    ("name", "embedding", "others"),
    [  # Millions of parameters: Gemma 3 Technical Report, arXiv 2503.19786, table 1.
        ("gemma3-1b", 302, 698),
        ("gemma3-4b", 675, 3209),
        ("gemma3-12b", 1012, 10759),
        ("gemma3-27b", 1416, 25600),
    ],
)
def test_sizes_are_as_published(name: str, embedding: int, others: int) -> None:
    with torch.device("meta"):
        module = build(name, 1).module
    num = sum(each.numel() for each in module.parameters())
    table = module.tokens.weight.numel()  # type: ignore[union-attr,operator]
    assert table / 1e6 == pytest.approx(embedding, rel=0.01)
    assert (num - table) / 1e6 == pytest.approx(others, abs=0.5)  # as published: whole millions


def test_every_sixth_layer_sees_all_tokens() -> None:
    config = ENTRIES["gemma3-1b"].config
    assert config.windows == (*(512, 512, 512, 512, 512, 0) * 4, 512, 512)


def test_published_files_are_read(tmp_path: Path) -> None:
    """The 4B file leaves out heads and vocabulary; the 27B file says them, in a model that also sees."""
    few = {
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "model_type": "gemma3_text",
        "num_hidden_layers": 34,
    }
    four = {"model_type": "gemma3", "text_config": {**few, "sliding_window": 1024}}
    assert read_config(written(tmp_path, four)) == ENTRIES["gemma3-4b"].config
    config = ENTRIES["gemma3-27b"].config
    patterned = hugging_face(config, rope_theta=1e6, rope_local_base_freq=10000, sliding_window_pattern=6)
    assert read_config(written(tmp_path, {"model_type": "gemma3", "text_config": patterned})) == config
    kinds = ["sliding_attention" if each else "full_attention" for each in config.windows]
    theta = {"full_attention": {"rope_theta": 1e6}, "sliding_attention": {"rope_theta": 1e4}}
    newer = hugging_face(config, layer_types=kinds, rope_parameters=theta)
    assert read_config(written(tmp_path, newer)) == config


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"final_logit_softcapping": 30.0}, "final_logit_softcapping.*allowed is null"),
        ({"hidden_activation": "gelu"}, "allowed is 'gelu_pytorch_tanh'"),
        ({"layer_types": ["full_attention"]}, "a kind for each of 62 layers"),
        ({"use_bidirectional_attention": True}, "allowed is false"),
    ],
)
def test_other_layers_are_refused(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    values = hugging_face(ENTRIES["gemma3-27b"].config, **change)
    with pytest.raises(ReadingError, match=message):
        read_config(written(tmp_path, values))
