"""LoRA adapters of small models as PEFT saves them, with random weights, and models with such weights added."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

ALL_LINEAR = r".*\.(\w+_proj|c_attn|c_proj|c_fc)"
WEIGHTS = "adapter_model.safetensors"
ATTENTION = r".*\.(q_proj|v_proj|c_attn)"


def save_adapter(
    folder: Path,
    model: PreTrainedModel,
    targets: str = ALL_LINEAR,
    rank: int = 4,
    seed: int = 1,
    **config: Any,
) -> Path:
    """Save an adapter of the layers whose paths match; return its folder."""
    generator = torch.Generator().manual_seed(seed)
    tensors: dict[str, Tensor] = {}
    for path, layer in model.named_modules():
        if isinstance(layer, nn.Linear | Conv1D) and re.fullmatch(targets, path):
            width = layer.weight.shape if isinstance(layer, Conv1D) else layer.weight.shape[::-1]
            for part, shape in (("A", (rank, width[0])), ("B", (width[1], rank))):
                name = f"base_model.model.{path}.lora_{part}.weight"
                tensors[name] = torch.randn(shape, generator=generator) * 0.1
    return save_tensors(folder, tensors, r=rank, **config)


def save_tensors(folder: Path, tensors: Mapping[str, Tensor], **config: Any) -> Path:
    """Save an adapter of these tensors; return its folder."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file(dict(tensors), folder / WEIGHTS)
    given = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "bias": "none",
        "lora_alpha": 8,
        "lora_dropout": 0.1,
        "target_modules": "all-linear",
        "modules_to_save": None,
        "use_dora": False,
        "use_rslora": False,
        "rank_pattern": {},
        "alpha_pattern": {},
        "inference_mode": True,
        "init_lora_weights": True,
    }
    (folder / "adapter_config.json").write_text(json.dumps(given | config))
    return folder


def merged(model: PreTrainedModel, folder: Path) -> PreTrainedModel:
    """The model, whose weights become those with the adapter."""
    config = json.loads((folder / "adapter_config.json").read_text())
    tensors = load_file(folder / WEIGHTS)
    with torch.no_grad():
        for name, down in tensors.items():
            if ".lora_A." not in name:
                continue
            layer = model.get_submodule(name.removeprefix("base_model.model.").removesuffix(".lora_A.weight"))
            rank = math.sqrt(len(down)) if config["use_rslora"] else len(down)
            change = tensors[name.replace("lora_A", "lora_B")] @ down * (config["lora_alpha"] / rank)
            layer.weight += change.T if isinstance(layer, Conv1D) else change
    return model
