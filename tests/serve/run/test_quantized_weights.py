"""Folders with weights in 8 or 4 bits: numbers are those of the formats, as transformers reads mxfp4."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.serve.run.model_families import SIZES, made_family
from torch import Tensor
from transformers import (
    GptOssForCausalLM,
    Mxfp4Config,
    PreTrainedModel,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from trainyard.serve.errors import ServeError
from trainyard.serve.run.causal_model import CausalModel, load_causal_model
from trainyard.serve.run.folder_files import TensorHeader
from trainyard.serve.run.model_check import check_model
from trainyard.serve.run.pretrained import load_causal_pretrained
from trainyard.serve.run.quantized_weights import (
    Quantization,
    lazy_weights,
    quantization_of,
    weights_of,
)

BLOCK = (32, 32)
_FP8 = {
    "quant_method": "fp8",
    "fmt": "e4m3",
    "activation_scheme": "dynamic",
    "weight_block_size": list(BLOCK),
}
_MXFP4 = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"]}


def _rewrite(folder: Path, tensors: Mapping[str, Tensor], quantization: Mapping[str, Any] | None) -> Path:
    save_file(dict(tensors), folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": quantization}))
    return folder


def _saved(model: PreTrainedModel, folder: Path) -> dict[str, Tensor]:
    model.save_pretrained(folder)
    return load_file(folder / "model.safetensors")


def _to_fp8(tensor: Tensor, block: tuple[int, int] = BLOCK) -> tuple[Tensor, Tensor, Tensor]:
    """A matrix in float8, the factors of its blocks, and the numbers that these are, block by block."""
    rows, columns = tensor.shape
    grid = [range(0, size, width) for size, width in zip(tensor.shape, block, strict=True)]
    packed = torch.empty(rows, columns, dtype=torch.float8_e4m3fn)
    factors, numbers = torch.empty(len(grid[0]), len(grid[1])), torch.empty(rows, columns)
    for i, row in enumerate(grid[0]):
        for j, column in enumerate(grid[1]):
            part = slice(row, row + block[0]), slice(column, column + block[1])
            factors[i, j] = tensor[part].abs().max() / 448
            packed[part] = (tensor[part] / factors[i, j]).to(torch.float8_e4m3fn)
            numbers[part] = packed[part].float() * factors[i, j]
    return packed, factors, numbers


def _save_fp8(model: PreTrainedModel, folder: Path) -> dict[str, Tensor]:
    """Save the products of all layers in float8; return what their weights then are."""
    tensors = _saved(model, folder)
    numbers = {}
    for name in [name for name in tensors if name.endswith("_proj.weight")]:
        packed, factors, numbers[name] = _to_fp8(tensors[name])
        tensors |= {name: packed, f"{name}_scale_inv": factors}
    _rewrite(folder, tensors, _FP8)
    return tensors | numbers


@pytest.fixture
def qwen(tmp_path: Path) -> tuple[Path, dict[str, Tensor]]:
    """Sizes are no multiples of those of a block."""
    torch.manual_seed(0)
    given = SIZES | {"num_hidden_layers": 2, "hidden_size": 48, "intermediate_size": 80, "head_dim": 12}
    return tmp_path, _save_fp8(Qwen3ForCausalLM(Qwen3Config(**given)), tmp_path)


def test_fp8_blocks_that_are_cut_off_have_the_factor_of_the_block(qwen: tuple[Path, dict[str, Tensor]]):
    folder, numbers = qwen
    check_model(folder, "causal", torch.float32)
    found = load_causal_pretrained(folder, torch.float32).state_dict()
    assert found["model.layers.0.mlp.down_proj.weight"].shape == (48, 80)
    assert sum(name.endswith("_proj.weight") for name in found) == 14
    for name, tensor in found.items():
        torch.testing.assert_close(tensor, numbers[name], rtol=0, atol=0)


def test_a_model_of_fp8_computes_with_these_numbers(qwen: tuple[Path, dict[str, Tensor]]):
    folder, numbers = qwen
    plain = Qwen3ForCausalLM(load_causal_pretrained(folder, torch.float32).config)
    plain.load_state_dict({name: each for name, each in numbers.items() if "_scale_inv" not in name})
    ids = torch.arange(40)[None]
    with torch.inference_mode():
        wanted = plain.eval()(input_ids=ids, use_cache=False).logits
        found = load_causal_pretrained(folder, torch.float32)(input_ids=ids, use_cache=False).logits
        rounded = load_causal_pretrained(folder, torch.bfloat16)(input_ids=ids, use_cache=False).logits
    torch.testing.assert_close(found, wanted)
    assert rounded.dtype == torch.bfloat16
    torch.testing.assert_close(rounded.float(), wanted, rtol=0.05, atol=0.05)


def test_a_block_may_be_larger_than_the_matrix(tmp_path: Path):
    weight = torch.tensor([[1.0, 2.0, -3.0]]).to(torch.float8_e4m3fn)
    save_file({"w": weight, "w_scale_inv": torch.tensor([[0.5]])}, tmp_path / "w.safetensors")
    given = {"quantization_config": _FP8 | {"weight_block_size": [2**70, 2**40]}}
    (tmp_path / "config.json").write_text(json.dumps(given))
    weights = lazy_weights(tmp_path, [tmp_path / "w.safetensors"])
    assert weights is not None
    assert weights["w"][...].tolist() == [[0.5, 1.0, -1.5]]


def test_fp8_experts_are_merged(tmp_path: Path):
    torch.manual_seed(0)
    given = SIZES | {
        "num_hidden_layers": 1,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 40,
    }
    numbers = _save_fp8(Qwen3MoeForCausalLM(Qwen3MoeConfig(**given)), tmp_path)
    check_model(tmp_path, "causal", torch.float32)
    found = load_causal_pretrained(tmp_path, torch.float32).state_dict()
    of_expert = "model.layers.0.mlp.experts.3"
    gate, up, down = (numbers[f"{of_expert}.{name}_proj.weight"] for name in ("gate", "up", "down"))
    assert torch.equal(found["model.layers.0.mlp.experts.gate_up_proj"][3], torch.cat((gate, up)))
    assert torch.equal(found["model.layers.0.mlp.experts.down_proj"][3], down)


def test_fp8_of_deepseek_is_served(tmp_path: Path):
    model = made_family("deepseek_v3")
    tensors = _saved(model, tmp_path)
    for name in [name for name in tensors if "experts." in name or "_proj.weight" in name]:
        packed, factors, _ = _to_fp8(tensors[name])
        tensors |= {name: packed, f"{name}_scale_inv": factors}
    _rewrite(tmp_path, tensors, _FP8)
    assert load_causal_model(tmp_path).shapes[0].value_width == 12


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_mxfp4_of_gpt_oss_is_as_transformers_reads_it(tmp_path: Path, dtype: torch.dtype):
    tensors = _saved(made_family("gpt_oss"), tmp_path)
    generator = torch.Generator().manual_seed(0)
    for name in [name for name in tensors if name.endswith(("gate_up_proj", "down_proj"))]:
        experts, columns, rows = tensors.pop(name).shape
        groups = (experts, rows, columns // 32)
        tensors[f"{name}_blocks"] = torch.randint(
            0, 256, (*groups, 16), generator=generator, dtype=torch.uint8
        )
        tensors[f"{name}_scales"] = torch.randint(117, 124, groups, generator=generator, dtype=torch.uint8)
    _rewrite(tmp_path, tensors, _MXFP4)
    check_model(tmp_path, "causal", dtype)
    found = load_causal_pretrained(tmp_path, dtype).state_dict()
    wanted = GptOssForCausalLM.from_pretrained(
        tmp_path, dtype=dtype, quantization_config=Mxfp4Config(dequantize=True)
    ).state_dict()
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert tensor.dtype == found[name].dtype == dtype
        assert torch.equal(found[name], tensor), name
    CausalModel(load_causal_pretrained(tmp_path, dtype), "gpt-oss")


def test_mxfp4_numbers_are_two_in_a_byte_times_a_power_of_two(tmp_path: Path):
    blocks = torch.zeros(1, 2, 1, 16, dtype=torch.uint8)
    blocks[0, 1, 0, 0], blocks[0, 1, 0, 15] = 0xF1, 0x2E
    tensors = {"x_blocks": blocks, "x_scales": torch.tensor([[[127], [130]]], dtype=torch.uint8)}
    save_file(tensors, tmp_path / "x.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": _MXFP4}))
    weights = lazy_weights(tmp_path, [tmp_path / "x.safetensors"])
    assert weights is not None
    found = weights["x"][...]
    assert found.shape == (1, 32, 2)
    assert found[0, :, 1].nonzero().flatten().tolist() == [0, 1, 30, 31]
    assert found[0, [0, 1, 30, 31], 1].tolist() == [4.0, -48.0, -32.0, 8.0]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"quant_method": "gptq", "bits": 4}, "quant_method 'gptq'"),
        ({"quant_method": "awq"}, "quant_method 'awq'"),
        ({"load_in_4bit": True, "quant_method": "bitsandbytes"}, "quant_method 'bitsandbytes'"),
        ({"load_in_8bit": True}, "quant_method None"),
        ({"quant_method": "compressed-tensors", "format": "float-quantized"}, "'compressed-tensors'"),
        ({"quant_method": ["fp8"]}, "quant_method \\['fp8'\\]"),
        ([], "quant_method None"),
        (_FP8 | {"weight_block_size": [128]}, "weight_block_size \\[128\\]; allowed are two numbers"),
        (_FP8 | {"weight_block_size": [0, 128]}, "allowed are two numbers"),
    ],
)
def test_other_quantizations_are_refused_by_name(qwen: tuple[Path, Any], given: Any, says: str):
    folder, _ = qwen
    _rewrite(folder, load_file(folder / "model.safetensors"), given)
    for refuse in (lambda: check_model(folder, "causal", torch.float32), lambda: load_causal_model(folder)):
        with pytest.raises(ServeError, match=says) as error:
            refuse()
        assert ("fp8 (as DeepSeek and Qwen) or mxfp4" in str(error.value)) == ("allowed are" not in says)


_WEIGHT = TensorHeader("F8_E4M3", (48, 80))


@pytest.mark.parametrize(
    ("headers", "quantization", "says"),
    [
        ({"w": _WEIGHT}, Quantization("fp8", BLOCK), "w_scale_inv missing; allowed is shape \\[2, 3\\]"),
        (
            {"w": _WEIGHT, "w_scale_inv": TensorHeader("F32", (1, 3))},
            Quantization("fp8", BLOCK),
            "w_scale_inv F32 \\[1, 3\\]",
        ),
        (
            {"w": _WEIGHT, "w_scale_inv": TensorHeader("U8", (2, 3))},
            Quantization("fp8", BLOCK),
            "w_scale_inv U8",
        ),
        (
            {"w": _WEIGHT, "w_scale_inv": TensorHeader("F32", (2, 3))},
            Quantization("fp8"),
            "allowed is one number",
        ),
        (
            {"w": TensorHeader("F8_E5M2", (48, 80))},
            Quantization("fp8", BLOCK),
            "does not say how it is scaled",
        ),
        ({"w": _WEIGHT}, Quantization(), "w in F8_E4M3 and does not say how it is scaled"),
        ({"a.weight": TensorHeader("I8", (4, 4))}, Quantization(), "a.weight in I8 and does not say"),
        ({"w_blocks": TensorHeader("U8", (1, 2, 3, 16))}, Quantization("mxfp4"), "w_scales missing"),
        (
            {"w_blocks": TensorHeader("U8", (1, 2, 3, 8)), "w_scales": TensorHeader("U8", (1, 2, 3))},
            Quantization("mxfp4"),
            "shape \\[experts, rows, groups, 16\\]",
        ),
    ],
)
def test_numbers_whose_scales_do_not_fit_are_refused(headers: Any, quantization: Quantization, says: str):
    with pytest.raises(ServeError, match=says):
        weights_of(headers, quantization, Path("folder"))


def test_weights_that_are_not_quantized_are_themselves(tmp_path: Path):
    (tmp_path / "config.json").write_text("{}")
    assert quantization_of(tmp_path) == Quantization()
    headers = {"a.bias": TensorHeader("U8", (4,)), "b.weight": TensorHeader("BF16", (2, 3))}
    assert {name: each.parts for name, each in weights_of(headers, Quantization(), tmp_path).items()} == {
        "a.bias": ("a.bias",),
        "b.weight": ("b.weight",),
    }
