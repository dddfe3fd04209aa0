"""Families of models: what is served is exact, and what is not is refused by its name when it is loaded."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.serve.run.exact_runs import RUNS, check_exact, served
from tests.serve.run.tiny_models import made
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from trainyard.cli.main import main
from trainyard.serve.errors import ServeError
from trainyard.serve.run import causal_model, hf_attention, small_model_check
from trainyard.serve.run.attention_window import MaskWindow
from trainyard.serve.run.causal_model import CausalModel
from trainyard.serve.run.model_check import check_model
from trainyard.serve.run.pretrained import load_causal_pretrained
from trainyard.serve.run.small_model_check import check_small_model, kind_of


def refusal(model_type: str, **fields: Any) -> str:
    """Why models of a type are not served; "" if they are."""
    try:
        return check_small_model(kind_of(AutoConfig.for_model(model_type, **fields))).why_not
    except ServeError as error:
        return str(error)


@pytest.mark.parametrize("name", ["llama4", "phimoe", "diffllama"])
def test_tokens_are_those_of_generate(name: str) -> None:
    """Chunks and windows that stand in the mask only; two calls of attention in a layer."""
    found, _ = served(CausalModel(made(name), name), *RUNS["chunks"], num=8)
    check_exact(name, found)


@pytest.mark.parametrize(
    ("model_type", "fields"),
    [
        ("llama", {}),
        ("gpt2", {}),
        ("mistral", {"sliding_window": 4096}),
        ("qwen3_moe", {}),
        ("llama4_text", {}),
        ("phimoe", {"sliding_window": 131072}),
        ("moshi", {}),
        ("diffllama", {}),
        pytest.param("gemma3_text", {}, marks=pytest.mark.slow),
        pytest.param("gemma3n_text", {}, marks=pytest.mark.slow),  # layers that share keys and values
    ],
)
def test_families_that_are_served(model_type: str, fields: dict[str, Any]) -> None:
    assert refusal(model_type, **fields) == ""


@pytest.mark.parametrize(
    ("model_type", "says"),
    [
        ("bert", "BertSelfAttention computes attention with a mask of its own"),
        (
            "qwen3_next",
            "qwen3_next models are not served: they keep a state of a sequence in layers 0, 1, 2, 4",
        ),
        ("nemotron_h", "nemotron_h models are not served: they keep a state"),
        ("mamba", "mamba models are not served: they keep a state"),
        ("bloom", "bloom models are not served: config.json has max_position_embeddings None"),
        ("falcon", "falcon models are not served: they compute attention in a way of their own"),
        (
            "blt",
            "blt models with this configuration are not served: their answers are checked by a small model",
        ),
        ("deepseek_v32", "DeepseekV32Attention computes attention with indices"),
    ],
)
def test_families_that_are_not_served_are_named(model_type: str, says: str) -> None:
    assert says in refusal(model_type)


def _no_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MaskWindow, "__call__", lambda self, positions: positions + 1)


def _no_positions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(causal_model, "needs_step_positions", lambda model, token: False)


def _one_cache_a_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    number = hf_attention.AttentionContext.next_call
    monkeypatch.setattr(
        hf_attention.AttentionContext, "next_call", lambda self, shape: number(self, shape) // 2 * 2
    )


def _no_scale(monkeypatch: pytest.MonkeyPatch) -> None:
    attend = small_model_check.TorchAttention.attend
    monkeypatch.setattr(
        small_model_check.TorchAttention,
        "attend",
        lambda self, query, cache, batch, scale, *more: attend(self, query, cache, batch, None, *more),
    )


@pytest.mark.parametrize(
    ("model_type", "fault", "where"),
    [
        ("llama4_text", _no_windows, "model.layers.0 (Llama4TextDecoderLayer)"),
        ("phimoe", _no_windows, "model.layers.0 (PhimoeDecoderLayer)"),
        pytest.param(
            "gemma3_text", _no_windows, "model.layers.0 (Gemma3DecoderLayer)", marks=pytest.mark.slow
        ),
        ("cohere2", _no_windows, "model.layers.0 (Cohere2DecoderLayer)"),
        ("llama4_text", _no_positions, "model.layers.3 (Llama4TextDecoderLayer)"),
        ("diffllama", _one_cache_a_layer, "model.layers.0 (DiffLlamaDecoderLayer)"),
        ("granite", _no_scale, "model.layers.0 (GraniteDecoderLayer)"),
    ],
)
def test_a_fault_is_found_and_its_layer_named(
    monkeypatch: pytest.MonkeyPatch, model_type: str, fault: Callable[[pytest.MonkeyPatch], None], where: str
) -> None:
    fields = {"sliding_window": 131072} if model_type == "phimoe" else {}
    assert refusal(model_type, **fields) == ""
    fault(monkeypatch)
    assert f"in steps of several requests, {where} gives other numbers" in refusal(model_type, **fields)


def test_a_kind_is_the_same_for_other_sizes() -> None:
    def kind(**fields: Any) -> str:
        return kind_of(AutoConfig.for_model("mistral", **{"sliding_window": 4096} | fields))

    larger = {"hidden_size": 8192, "num_attention_heads": 64, "num_hidden_layers": 80, "vocab_size": 128_000}
    assert kind(**larger) == kind()
    assert kind(sliding_window=1000) == kind()
    assert kind(sliding_window=None) != kind()
    assert kind(num_key_value_heads=32) != kind()


def test_a_cache_has_room_for_each_call_of_attention() -> None:
    assert check_small_model(kind_of(AutoConfig.for_model("diffllama"))).calls_per_layer == 2.0
    assert check_small_model(kind_of(AutoConfig.for_model("llama"))).calls_per_layer == 1.0


def test_the_command_names_the_family(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = {"hidden_size": 64, "num_hidden_layers": 4, "vocab_size": 300, "num_experts": 4}
    AutoModelForCausalLM.from_config(AutoConfig.for_model("qwen3_next", **sizes)).save_pretrained(tmp_path)
    assert main(["serve", "run", str(tmp_path), "--port", "0"]) == 2
    told = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error")]
    assert len(told) == 1
    assert "qwen3_next models are not served: they keep a state of a sequence in layers 0, 1, 2 (" in told[0]


@pytest.fixture
def changed(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of the small model, to be changed, and nothing that is remembered."""
    monkeypatch.setenv("TRAINYARD_CACHE", str(tmp_path / "cache"))
    return Path(shutil.copytree(folder, tmp_path / "changed"))


def test_what_a_small_model_shows_is_remembered(changed: Path, tmp_path: Path) -> None:
    check_model(changed, "causal", torch.float32)
    (kept,) = (tmp_path / "cache").iterdir()
    assert json.loads(kept.read_text()) == ["", 1.0]
    kept.write_text('["llama models are not served today", 1.0]')
    with pytest.raises(ServeError, match="llama models are not served today"):
        check_model(changed, "causal", torch.float32)
    kept.write_text("damaged")
    check_model(changed, "causal", torch.float32)
    assert json.loads(kept.read_text()) == ["", 1.0]


def _change(folder: Path, fields: dict[str, Any], **tensors: torch.Tensor) -> None:
    config = folder / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | fields))
    weights = folder / "model.safetensors"
    save_file(load_file(weights) | tensors, weights, metadata={"format": "pt"})


def test_weights_of_more_than_config_json_has_are_named(changed: Path) -> None:
    _change(changed, {}, **{"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(8)})
    load_causal_pretrained(changed, torch.float32)
    _change(changed, {"num_hidden_layers": 1})
    with pytest.raises(
        ServeError, match=r"has model\.layers\.1\..* config.json does not use; give the config"
    ):
        load_causal_pretrained(changed, torch.float32)
    _change(changed, {"num_hidden_layers": 2}, **{"model.layers.0.self_attn.q_proj.bias": torch.ones(64)})
    with pytest.raises(ServeError, match=r"has model\.layers\.0\.self_attn\.q_proj\.bias"):
        load_causal_pretrained(changed, torch.float32)


def test_experts_that_are_not_alike_are_named(changed: Path) -> None:
    made("mixtral").save_pretrained(changed)
    name = "model.layers.0.block_sparse_moe.experts.1.w1.weight"
    assert name in load_file(changed / "model.safetensors")
    _change(changed, {}, **{name: torch.ones(127, 64)})
    with pytest.raises(
        ServeError, match=r"experts\.1\.w1\.weight of shape \[127, 64\], and \[128, 64\] of another"
    ):
        load_causal_pretrained(changed, torch.float32)


@pytest.mark.long
@pytest.mark.parametrize("model_type", MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
def test_every_type_of_transformers_is_exact_or_refused_by_name(model_type: str) -> None:
    """Some types have no default configuration."""
    try:
        config = AutoConfig.for_model(model_type)
    except Exception as error:
        pytest.skip(f"needs a default configuration of {model_type}: {str(error)[:100]}")
    try:
        said = check_small_model(kind_of(config)).why_not
    except ServeError as error:
        said = str(error)
    assert "Traceback" not in said
    if said:
        assert " not served: " in said
        assert "; allowed " in said
