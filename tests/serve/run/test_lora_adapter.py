"""Folders of adapters: what is read of them, and what is refused by its name."""

from __future__ import annotations

import importlib
import json
import re
import struct
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from tests.serve.run.tiny_adapters import save_tensors
from tests.serve.run.tiny_models import drawn_prompts, generated_by, made

from trainyard.serve.catalog import parse_policies
from trainyard.serve.errors import ServeError
from trainyard.serve.requests.request import Request
from trainyard.serve.run.causal_model import CausalModel
from trainyard.serve.run.engine import Engine, EngineOptions
from trainyard.serve.run.lora_adapter import read_lora_adapter
from trainyard.serve.run.sampling import SamplingParams

_Q = "base_model.model.model.layers.0.self_attn.q_proj"


def _pair(path: str = _Q, rank: int = 2, inputs: int = 64, outputs: int = 64) -> dict[str, torch.Tensor]:
    shapes = {"A": (rank, inputs), "B": (outputs, rank)}
    return {f"{path}.lora_{part}.weight": torch.ones(shape) for part, shape in shapes.items()}


@pytest.mark.parametrize(("stabilized", "scale"), [(False, 8 / 4), (True, 8 / 2)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_updates_are_scaled(tmp_path, stabilized, scale, dtype):
    found = read_lora_adapter(save_tensors(tmp_path, _pair(rank=4), r=4, use_rslora=stabilized), dtype)
    ((path, update),) = found.items()
    assert path == "model.layers.0.self_attn.q_proj"
    assert update.down.shape == (64, 4)
    assert torch.equal(update.up, torch.full((4, 64), scale, dtype=dtype))


def test_ranks_may_differ_by_layer(tmp_path):
    tensors = _pair() | _pair(_Q.replace("q_proj", "o_proj"), rank=8)
    found = read_lora_adapter(save_tensors(tmp_path, tensors, r=2, rank_pattern={"o_proj": 8}))
    assert {path[-6:]: float(each.up[0, 0]) for path, each in found.items()} == {"q_proj": 4, "o_proj": 1}


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"peft_type": "LOHA"}, "peft_type is 'LOHA', which is not done; allowed is 'LORA'"),
        ({"bias": "all"}, "bias is 'all', which is not done; allowed is 'none'"),
        ({"use_dora": True}, "use_dora is True"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save is ['lm_head']"),
        ({"alpha_pattern": {"q_proj": 3}}, "alpha_pattern is"),
        ({"layer_replication": [[0, 1]]}, "layer_replication is"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights is 'pissa'"),
        ({"something_new": 3}, "something_new is 3"),
        ({"r": 0}, "r is 0"),
        ({"r": 3}, "ranks 2 and 2"),
        ({"rank_pattern": [2]}, "rank_pattern [2]"),
        ({"lora_alpha": "8"}, "lora_alpha is '8'; allowed is a number"),
        ({"use_rslora": "no"}, "use_rslora is 'no'"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_a_configuration_that_is_not_done_is_refused(tmp_path, config, says):
    folder = save_tensors(tmp_path, _pair(), **({"r": 2} | config))
    with pytest.raises(ServeError, match=re.escape(says)):
        read_lora_adapter(folder)


@pytest.mark.parametrize(
    ("tensors", "says"),
    [
        ({}, "has no tensors"),
        ({f"{_Q}.lora_A.weight": torch.ones(2, 64)}, "only lora_A of 'model.layers.0.self_attn.q_proj'"),
        ({f"{_Q}.lora_magnitude_vector": torch.ones(64)}, "lora_magnitude_vector' of shape [64]"),
        ({"base_model.model.model.embed_tokens.lora_embedding_A": torch.ones(2, 300)}, "lora_embedding_A'"),
        ({f"{_Q}.lora_A.weight": torch.ones(2, 64, 1)}, "of shape [2, 64, 1]"),
        ({f"{_Q}.lora_A.weight": torch.ones(2, 64, dtype=torch.int8)}, "type I8"),
        ({name: tensor / 0 for name, tensor in _pair().items()}, "no finite numbers"),
        (
            _pair("base_model.model.model.layers.7.self_attn.q_proj"),
            "has no layer 'model.layers.7.self_attn.q_proj'",
        ),
        (_pair("base_model.model.lm_head", outputs=300), "changes lm_head of llama"),
        (_pair("base_model.model.model.embed_tokens"), "model.embed_tokens of llama, a Embedding"),
        (_pair(outputs=32), "from 64 to 32 features; in llama it is from 64 to 64"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_tensors_that_are_not_done_are_refused(tmp_path, tensors, says):
    model = CausalModel(made("llama"), "llama")
    with pytest.raises(ServeError, match=re.escape(says)):
        model.load_adapter(
            "a", save_tensors(tmp_path, _pair(_Q.replace("q", "o")) | tensors if tensors else {}, r=2)
        )
    assert not any("Lora" in type(each).__name__ for each in model._model.modules())


def _sparse(path: Path, shapes: Mapping[str, tuple[int, int]]) -> None:
    """Weights that are all 0 and take no room on the disk, however large."""
    header, end = {}, 0
    for name, shape in shapes.items():
        begin, end = end, end + 4 * shape[0] * shape[1]
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(file.tell() + end)


@pytest.mark.parametrize(
    ("rank", "inputs", "says"),
    [
        (2**31, 64, "allowed are ranks up to the larger of these"),
        (2, 2**31, "in llama it is from 64 to 64"),
    ],
)
def test_tensors_that_are_larger_than_the_model_are_refused_before_they_are_read(
    tmp_path, rank, inputs, says
):
    save_tensors(tmp_path, _pair(), r=rank)
    shapes = {f"{_Q}.lora_A.weight": (rank, inputs), f"{_Q}.lora_B.weight": (64, rank)}
    _sparse(tmp_path / "adapter_model.safetensors", shapes)
    with pytest.raises(ServeError, match=says):
        CausalModel(made("llama"), "llama").load_adapter("a", tmp_path)


def test_a_header_that_is_too_large_is_refused(tmp_path):
    save_tensors(tmp_path, _pair(), r=2)
    (tmp_path / "adapter_model.safetensors").write_bytes(struct.pack("<Q", 2**40) + b"{}")
    with pytest.raises(ServeError, match="its header has 1,099,511,627,776 bytes; allowed are"):
        read_lora_adapter(tmp_path)


def test_a_layer_of_another_adapter_is_none_of_the_model(tmp_path):
    model = CausalModel(made("llama"), "llama")
    model.load_adapter("a", save_tensors(tmp_path / "a", _pair(), r=2))
    inside = save_tensors(tmp_path / "b", _pair(f"{_Q}.base"), r=2)
    with pytest.raises(ServeError, match=r"has no layer 'model\.layers\.0\.self_attn\.q_proj\.base'"):
        model.load_adapter("b", inside)


@pytest.mark.parametrize("name", ["adapter_config.json", "adapter_model.safetensors"])
def test_folders_without_an_adapter_are_refused(tmp_path, name):
    folder = save_tensors(tmp_path / "a", _pair(), r=2)
    path = folder / name
    path.write_text("neither JSON nor tensors")
    with pytest.raises(ServeError, match=name):
        read_lora_adapter(folder)
    path.unlink()
    with pytest.raises(ServeError, match=f"has no {name}"):
        read_lora_adapter(folder)
    path.write_text(json.dumps([1]))
    with pytest.raises(ServeError, match=name):
        read_lora_adapter(folder)


@pytest.mark.long
@pytest.mark.skipif(find_spec("peft") is None, reason="needs: pip install peft")
@pytest.mark.parametrize("config", [{}, {"use_rslora": True, "rank_pattern": {"q_proj": 2}, "lora_alpha": 3}])
@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_what_peft_saves_is_read(tmp_path, name, config):
    peft = importlib.import_module("peft")
    torch.manual_seed(1)
    model = peft.get_peft_model(made(name), peft.LoraConfig(target_modules="all-linear", **config)).eval()
    for path, param in model.named_parameters():
        if ".lora_B." in path:
            torch.nn.init.normal_(param, std=0.1)
    model.save_pretrained(tmp_path)
    prompts = drawn_prompts(3)
    expected = [tokens for tokens, _ in generated_by(model, prompts, 8)]
    ((_, policy),) = parse_policies("vllm")
    engine = Engine(CausalModel(made(name), name), policy, EngineOptions(64))
    engine.load_adapter("a", tmp_path)
    found = {}
    for prompt in prompts:
        request = Request(str(prompt), 0.0, len(prompt), 8, prompt_ids=prompt, adapter="a")
        found[engine.add(request, SamplingParams(temperature=0.0))] = []
    while engine.has_work:
        for out in engine.step():
            found[out.request].append(out.token)
    assert list(found.values()) == expected
