"""Record of a module in a checkpoint: the name, type and shape of each of its tensors, and where the checkpoint has it.

A checkpoint keeps a tensor once, by its first name and with at least the precision of float32. The record adds what a
state dict of the module has beside that: second names of tied weights, types, numbers without dimensions, and which
buffers belong to it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from trainyard.job.run.checkpoint.same_run import BUFFERS, PARAMS
from trainyard.job.run.checkpoint.saved import RUN
from trainyard.job.run.errors import CheckpointError

__all__ = ["ModuleRecord", "ModuleTensor", "module_record", "named_tensors", "read_module_record"]

_FIELD = "module"


@dataclass(frozen=True)
class ModuleTensor:
    """One name of a parameter or buffer.

    Attributes
    ----------
    key : of the tensor in the checkpoint, ``param/<first name>`` or ``buffer/<first name>``.
    dtype : in the module.
    shape : in the module; the checkpoint has a number without dimensions as a row of one.
    is_persistent : whether a state dict has it.
    """

    key: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    is_persistent: bool


@dataclass(frozen=True)
class ModuleRecord:
    """All tensors of a module by name, tied ones by each of their names.

    Attributes
    ----------
    tensors : by name.
    transformers_config : configuration of the model of transformers that the module is, or has; None if there is none.
    """

    tensors: Mapping[str, ModuleTensor]
    transformers_config: Mapping[str, Any] | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return a dictionary for JSON; `read_module_record` reads it back."""
        tensors = {
            name: [t.key, str(t.dtype).removeprefix("torch."), list(t.shape), t.is_persistent]
            for name, t in self.tensors.items()
        }
        return {_FIELD: {"tensors": tensors, "transformers_config": self.transformers_config}}


def module_record(module: nn.Module) -> ModuleRecord:
    """Describe a module; no value is read."""
    state_dict = module.state_dict(keep_vars=True).keys()
    keys: dict[int, str] = {id(tensor): f"{BUFFERS}/{name}" for name, tensor in module.named_buffers()}
    keys |= {id(tensor): f"{PARAMS}/{name}" for name, tensor in module.named_parameters()}
    tensors = {
        name: ModuleTensor(keys[id(tensor)], tensor.dtype, tuple(tensor.shape), name in state_dict)
        for name, tensor in named_tensors(module).items()
    }
    return ModuleRecord(tensors, _transformers_config(module))


def named_tensors(module: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers of a module; a tied one by each of its names."""
    buffers: dict[str, Tensor] = dict(module.named_buffers(remove_duplicate=False))
    return {**dict(module.named_parameters(remove_duplicate=False)), **buffers}


def _transformers_config(module: nn.Module) -> dict[str, Any] | None:
    """Return the configuration of the only outermost model of transformers in a module, as its ``config.json`` has it."""
    transformers = sys.modules.get("transformers")  # a module that has such a model has imported it
    if transformers is None:
        return None
    found: dict[str, Any] = {}
    for name, each in module.named_modules():
        is_inner = any(name.startswith(f"{outer}." if outer else "") for outer in found)
        if isinstance(each, transformers.PreTrainedModel) and not is_inner:
            found[name] = each
    if len(found) != 1:
        return None
    (model,) = found.values()
    described: dict[str, Any] = json.loads(model.config.to_json_string(use_diff=False))
    return {**described, "architectures": [type(model).__name__]}


def read_module_record(described: Mapping[str, Any], checkpoint: Path) -> ModuleRecord:
    """Read the record of a checkpoint.

    Parameters
    ----------
    described : what ``run.json`` holds.

    Raises
    ------
    CheckpointError
        If there is none, as in checkpoints of older versions, or it cannot be.
    """
    if _FIELD not in described:
        raise CheckpointError(
            f"{checkpoint} has no record of its module's tensors; continue its run for a step (--resume), which "
            "writes one"
        )
    try:
        given = described[_FIELD]
        tensors = {name: _tensor(each) for name, each in given["tensors"].items()}
        config = given["transformers_config"]
        if not isinstance(config, dict | None):
            raise TypeError(f"transformers_config is a {type(config).__name__}")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(
            f"{checkpoint / RUN} cannot be read: its record of the module is wrong ({type(error).__name__} {error})"
        ) from error
    return ModuleRecord(tensors, config)


def _tensor(given: Any) -> ModuleTensor:
    key, dtype_name, shape, is_persistent = given
    dtype = getattr(torch, str(dtype_name), None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"unknown type {dtype_name!r}")
    if not isinstance(shape, list) or not all(type(size) is int and 0 <= size < 2**63 for size in shape):
        raise ValueError(f"no shape: {shape!r}")
    if type(key) is not str or type(is_persistent) is not bool:
        raise TypeError(f"no name, or no yes or no: {key!r}, {is_persistent!r}")
    return ModuleTensor(key, dtype, tuple(shape), is_persistent)
