"""LoRA adapters from folders as PEFT saves them: low-rank updates of the weights of some layers.

References
----------
.. [1] Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", ICLR 2022.
.. [2] Kalajdzievski, "A Rank Stabilization Scaling Factor for Fine-Tuning with LoRA", 2023 (``use_rslora``).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from os.path import isfile
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from trainyard.reading import listed, parse_json, raised_as, read_text, shown
from trainyard.serve.errors import ServeError
from trainyard.serve.run.folder_files import check_header

__all__ = ["ADAPTER_FILES", "LoraConfig", "LoraUpdate", "read_lora_adapter", "read_lora_config"]

_CONFIG, _WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
ADAPTER_FILES = (_CONFIG, _WEIGHTS)
"""Files that are read from the folder of an adapter."""

_TENSOR = re.compile(r"base_model\.model\.(.+)\.lora_([AB])\.weight")
_FLOATS = frozenset({"F64", "F32", "F16", "BF16"})
_IN_TRAINING_ONLY = frozenset(
    {
        "auto_mapping",
        "base_model_name_or_path",
        "ensure_weight_tying",
        "eva_config",
        "exclude_modules",
        "fan_in_fan_out",  # the layer itself tells it
        "inference_mode",
        "layers_pattern",
        "layers_to_transform",
        "lora_dropout",
        "megatron_core",
        "peft_version",
        "qalora_group_size",
        "revision",
        "runtime_config",
        "target_modules",  # the tensors themselves tell it
        "task_type",
    }
)
_DONE: Mapping[str, tuple[Any, ...]] = {
    "bias": ("none",),
    "init_lora_weights": (
        True,
        False,
        "gaussian",
        "eva",
        "orthogonal",
    ),  # others change the model's own weights, too
    "peft_type": ("LORA",),
}
"""Values of fields, all others of which are not done."""


@dataclass(frozen=True)
class LoraConfig:
    """What the configuration of an adapter says of its results.

    Attributes
    ----------
    alpha : the scale, before it is divided.
    ranks : that its updates may have.
    is_rank_stabilized : whether the scale is divided by the root of the rank, and not by the rank.
    """

    alpha: float
    ranks: frozenset[int]
    is_rank_stabilized: bool

    def scale(self, rank: int) -> float:
        """Factor of an update."""
        return self.alpha / (math.sqrt(rank) if self.is_rank_stabilized else rank)


@dataclass(frozen=True, eq=False)
class LoraUpdate:
    """What an adapter adds to the results of one layer: ``x @ down @ up``.

    Attributes
    ----------
    down : A of the paper; shape ``(inputs, rank)``.
    up : B of the paper, scaled; shape ``(rank, outputs)``.
    """

    down: Tensor
    up: Tensor


def read_lora_config(folder: Path) -> LoraConfig:
    """Read the configuration of an adapter.

    Raises
    ------
    ServeError
        If there is none, or it asks for what is not done.
    """
    path = folder / _CONFIG
    if not isfile(path):  # a name that is too long is none, either
        raise ServeError(f"{folder} has no {_CONFIG}; give the folder of a LoRA adapter, as PEFT saves it")
    with raised_as(ServeError):
        given = parse_json(read_text(path), path)
    if not isinstance(given, dict) or "peft_type" not in given:
        raise ServeError(f"{path} has no peft_type; give the folder of a LoRA adapter, as PEFT saves it")
    rank, alpha, stabilized = (given.pop(name, None) for name in ("r", "lora_alpha", "use_rslora"))
    pattern = given.pop("rank_pattern", None) or {}
    for name, value in given.items():
        allowed = _DONE.get(name, (None, False, [], {}, ""))
        if name not in _IN_TRAINING_ONLY and value not in allowed:
            told = " or ".join(map(repr, allowed))
            raise ServeError(f"{path}: {name} is {shown(value)}, which is not done; allowed is {told}")
    ranks: list[Any] = [rank, *pattern.values()] if isinstance(pattern, dict) else [None]
    if not all(type(each) is int and each > 0 for each in ranks):
        raise ServeError(
            f"{path}: r is {shown(rank)}, rank_pattern {shown(pattern)}; allowed are numbers above 0"
        )
    if type(alpha) not in (int, float) or not math.isfinite(alpha):
        raise ServeError(f"{path}: lora_alpha is {shown(alpha)}; allowed is a number")
    if stabilized not in (None, False, True):
        raise ServeError(f"{path}: use_rslora is {shown(stabilized)}; allowed is true or false")
    return LoraConfig(float(alpha), frozenset(ranks), bool(stabilized))


def read_lora_adapter(
    folder: Path,
    dtype: torch.dtype = torch.float32,
    require: Callable[[str, int, int], object] = lambda path, inputs, outputs: None,
) -> Mapping[str, LoraUpdate]:
    """Read an adapter: ``adapter_config.json`` and ``adapter_model.safetensors``.

    Parameters
    ----------
    dtype : type of the tensors that are made.
    require : refuses a layer that the model does not have, by its path, inputs and outputs. It is asked before any tensor
        is read.

    Returns
    -------
    Updates by the path of their layer in the model.

    Raises
    ------
    ServeError
        If the folder has no such adapter, it has what is not done, or ``require`` refuses a layer.
    """
    config, path = read_lora_config(folder), folder / _WEIGHTS
    if not isfile(path):
        raise ServeError(f"{folder} has no {_WEIGHTS}; allowed is this format only")
    check_header(path)
    try:
        with safe_open(path, framework="np") as file:
            shapes = _shapes(path, file)
        for layer, each in shapes.items():
            _check_shapes(path, layer, each, config, require)
        with safe_open(path, framework="pt") as file:
            return {layer: _update(path, layer, file, config, dtype) for layer in shapes}
    except (OSError, RuntimeError, SafetensorError) as error:
        raise ServeError(f"{path} cannot be read: {error}") from error


_Shapes = Mapping[str, tuple[int, int]]


def _shapes(path: Path, file: Any) -> Mapping[str, _Shapes]:
    """The shapes of A and B, by the path of the layer; no tensor is read for them."""
    found: dict[str, dict[str, tuple[int, int]]] = {}
    for name in file.keys():  # noqa: SIM118
        tensor, named = file.get_slice(name), _TENSOR.fullmatch(name)
        shape, kind = tensor.get_shape(), tensor.get_dtype()
        if named is None or len(shape) != 2 or kind not in _FLOATS:
            told = f"of shape {shape} and type {kind}"
            allowed = "lora_A.weight and lora_B.weight of linear layers"
            raise ServeError(f"{path} has {shown(name)} {told}, which is not done; allowed are {allowed}")
        found.setdefault(named[1], {})[named[2]] = shape[0], shape[1]
    if not found:
        raise ServeError(f"{path} has no tensors; give an adapter with some")
    return found


def _check_shapes(
    path: Path, layer: str, shapes: _Shapes, config: LoraConfig, require: Callable[[str, int, int], object]
) -> None:
    """Refuse a layer whose tensors the model cannot use; so no tensor is larger than the model's own."""
    if len(shapes) != 2:
        raise ServeError(
            f"{path} has only lora_{listed(shapes)} of {shown(layer)}; give an adapter with both"
        )
    (rank, inputs), (outputs, rank_of_b) = shapes["A"], shapes["B"]
    if rank not in config.ranks or rank != rank_of_b:
        raise ServeError(
            f"{path} has ranks {rank} and {rank_of_b} of {shown(layer)}; allowed by {_CONFIG} is "
            f"{listed(map(str, sorted(config.ranks)))}"
        )
    require(layer, inputs, outputs)
    if rank > max(inputs, outputs):
        raise ServeError(
            f"{path} has rank {rank} of {shown(layer)}, from {inputs} to {outputs} features; allowed are ranks up to "
            "the larger of these"
        )


def _update(path: Path, layer: str, file: Any, config: LoraConfig, dtype: torch.dtype) -> LoraUpdate:
    down: Tensor
    up: Tensor
    down, up = (file.get_tensor(f"base_model.model.{layer}.lora_{part}.weight") for part in "AB")
    rank = down.shape[0]
    down, up = down.to(dtype), (up.float() * config.scale(rank)).to(dtype)
    if not (down.isfinite().all() and up.isfinite().all()):
        raise ServeError(
            f"{path} has values of {shown(layer)} that are no finite numbers; give another adapter"
        )
    # Rows of few tokens go through matrices faster as they lie then.
    # Copied, because the file may change.
    return LoraUpdate(down.t().clone(memory_format=torch.contiguous_format), up.t().contiguous())
