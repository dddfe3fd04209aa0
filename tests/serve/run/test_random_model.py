"""Models of the zoo with random weights."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig

from trainyard.cli.serve.engine_options import LocalEngineOptions
from trainyard.cli.serve.zoo_models import saved_random_model
from trainyard.serve.errors import ServeError
from trainyard.serve.requests.request import Request
from trainyard.serve.run.engine import Engine
from trainyard.serve.run.engine_process import EngineSpec
from trainyard.serve.run.model_tokenizer import ModelTokenizer
from trainyard.serve.run.outputs import NewToken
from trainyard.serve.run.random_model import random_model, save_random_model, weight_bytes
from trainyard.serve.run.sampling import SamplingParams
from trainyard.zoo import decoder, gpt, llama, registry
from trainyard.zoo.decoder import DecoderConfig
from trainyard.zoo.gpt import GPTConfig
from trainyard.zoo.llama import LlamaConfig
from trainyard.zoo.mixture import MixtureConfig

_SIZES = (300, 64, 2, 64, 4, 2, 96)
_LLAMA = LlamaConfig(*_SIZES)
_CONFIGS = {
    "llama": _LLAMA,
    "gpt2": GPTConfig(300, 64, 2, 64, 4),
    "qwen2": LlamaConfig(*_SIZES, qkv_bias=True),
    "mistral": LlamaConfig(*_SIZES, window=8),
    "qwen3": LlamaConfig(*_SIZES, head_width=32, qk_norm="head"),
    "mixtral": DecoderConfig(*_SIZES, mixture=MixtureConfig(4, 2, 96)),
    "qwen3_moe": DecoderConfig(*_SIZES, qk_norm="head", mixture=MixtureConfig(4, 2, 40, normalised=False)),
}
_BUILDERS = {LlamaConfig: llama.build, GPTConfig: gpt.build, DecoderConfig: decoder.build}


def _spec(monkeypatch: pytest.MonkeyPatch, folder: Path, tensor_parallel: int = 1) -> EngineSpec:
    monkeypatch.setitem(registry.ENTRIES, "small", registry.Entry(llama.build, _LLAMA, 1))
    options = LocalEngineOptions(dtype="bfloat16", cache_blocks=20, threads=1)
    saved = saved_random_model("small", folder / "saved")
    spec = options.spec(saved, "vllm", tensor_parallel=tensor_parallel, checks_weights=False)
    return replace(spec, load=random_model)


def _answer(engine: Engine, prompt: tuple[int, ...]) -> list[int]:
    engine.add(Request("r", 0.0, len(prompt), 30, prompt_ids=prompt), SamplingParams(temperature=2.0, seed=1))
    tokens = []
    while engine.has_work:
        tokens += [out.token for out in engine.step() if isinstance(out, NewToken)]
    return tokens


def test_memory_for_blocks_is_counted_in_whole_blocks(tmp_path: Path):
    folder = save_random_model("small", _LLAMA, tmp_path / "small")
    size_bytes = 2 * 2 * 8 * (2 * 16) * 2  # keys and values of 8 tokens in bfloat16: 2 heads of 16, 2 layers

    def blocks(**options: int) -> tuple[int, int]:
        spec = LocalEngineOptions(dtype="bfloat16", block_tokens=8, threads=1, **options)
        engine = spec.spec(folder, "vllm", checks_weights=False).options
        return engine.num_blocks, engine.num_host_blocks

    assert blocks(cache_blocks=20) == (20, 0)
    assert blocks(cache_memory=7 * size_bytes - 1) == (6, 0)
    assert blocks(cache_blocks=20, host_cache_memory=3 * size_bytes + 1) == (20, 3)


def test_an_engine_is_made_of_a_name_and_every_token_has_a_text(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    spec = _spec(monkeypatch, tmp_path)
    tokenizer = ModelTokenizer(spec.folder)
    prompt = tokenizer.encode("Grüße 300")
    assert tokenizer.decode(prompt) == "Grüße 300"
    assert len(prompt) == len("Grüße 300".encode())
    tokens = _answer(spec.make_engine(), prompt)
    assert _answer(spec.make_engine(), prompt) == tokens
    assert max(tokens) > 256
    assert tokenizer.vocabulary == 300
    assert tokenizer.stop_token_ids == {256}
    assert [tokenizer.decode([token]) for token in range(257, 300)] == [f" {n}" for n in range(257, 300)]


@pytest.mark.slow
def test_processes_that_share_a_model_draw_the_same_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    alone, shared = (_spec(monkeypatch, tmp_path / name, num) for name, num in (("one", 1), ("two", 2)))
    engine = shared.make_engine()
    try:
        found = _answer(engine, (1, 2, 3))
    finally:
        engine.close()
    assert found[:8] == _answer(alone.make_engine(), (1, 2, 3))[:8]


@pytest.mark.parametrize("kind", _CONFIGS)
def test_models_are_of_the_kind_and_size_of_the_zoo(kind: str, tmp_path: Path):
    config = _CONFIGS[kind]
    folder = save_random_model("small", config, tmp_path / "small")
    model = random_model(folder, torch.bfloat16)
    num = sum(each.numel() for each in _BUILDERS[type(config)]("small", config, 1).module.parameters())
    assert AutoConfig.from_pretrained(folder).model_type == kind
    assert model.num_parameters() == num
    assert {each.dtype for each in model.parameters()} == {torch.bfloat16}
    tied = 300 * 64 if kind == "gpt2" else 0
    positions = sum(each.numel() * each.element_size() for each in model.buffers())
    assert weight_bytes(folder, torch.bfloat16) == 2 * (num + tied) + positions


@pytest.mark.parametrize(
    ("config", "says"),
    [
        (LlamaConfig(256), "257 or more"),
        (LlamaConfig(rotary=8), "not of its kind"),
        (DecoderConfig(mixture=MixtureConfig(4, 2, 96, shared=8)), "not of its kind"),
        (registry.ENTRIES["moe"].config, "not of its kind"),
        (registry.ENTRIES["bert-base"].config, "not of its kind"),
    ],
)
def test_other_models_are_refused_by_name(config: object, says: str, tmp_path: Path):
    with pytest.raises(ServeError, match=f"some model .*{says}"):
        save_random_model("some model", config, tmp_path / "small")


def test_weights_that_are_drawn_change_no_other_numbers(tmp_path: Path):
    folder = save_random_model("small", _LLAMA, tmp_path / "small")
    torch.manual_seed(3)
    wanted = torch.rand(4)
    torch.manual_seed(3)
    random_model(folder, torch.float32)
    assert torch.equal(torch.rand(4), wanted)
