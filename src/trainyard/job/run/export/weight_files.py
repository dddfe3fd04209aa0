"""Weights as other programs read them: safetensors in one or several files, and state dicts of PyTorch."""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from trainyard.job.run.checkpoint.module_record import ModuleRecord, ModuleTensor, read_module_record
from trainyard.job.run.checkpoint.saved import read_run
from trainyard.job.run.checkpoint.weights import Weights, read_weights
from trainyard.job.run.errors import WeightsError

__all__ = [
    "MOST_SHARD_BYTES",
    "StateDict",
    "export_safetensors",
    "export_state_dict",
    "new_path",
    "read_state_dict",
    "write_safetensors",
]

MOST_SHARD_BYTES = 5 * 10**9
"""Most bytes of a file of weights, unless something else is asked for."""
_FILE, _SHARD, _INDEX = (
    "model.safetensors",
    "model-{:05d}-of-{:05d}.safetensors",
    "model.safetensors.index.json",
)


class StateDict(Mapping[str, Tensor]):
    """The state dict of a checkpoint's module; each tensor is read when it is asked for, in its own type.

    Attributes
    ----------
    source : the checkpoint.
    tensors : descriptions of the entries by name.
    transformers_config : configuration of the module's model of transformers; None if it is none.
    """

    def __init__(self, weights: Weights, record: ModuleRecord) -> None:
        self.source, self._weights = weights.source, weights
        self.tensors = {name: each for name, each in record.tensors.items() if each.is_persistent}
        self.transformers_config = record.transformers_config

    def __getitem__(self, name: str) -> Tensor:
        return self._weights[name].to(self.tensors[name].dtype)

    def __iter__(self) -> Iterator[str]:
        return iter(self.tensors)

    def __len__(self) -> int:
        return len(self.tensors)


def read_state_dict(checkpoint: Path, ema: bool = False) -> StateDict:
    """Read the state dict of a checkpoint's module.

    Parameters
    ----------
    checkpoint : of any plan.
    ema : read the moving average of each trained parameter in place of it.

    Raises
    ------
    WeightsError
        If there is no moving average.
    CheckpointError
        If the checkpoint is damaged.
    """
    weights = read_weights(checkpoint, ema)
    return StateDict(weights, read_module_record(read_run(weights.source), weights.source))


def export_safetensors(
    state: StateDict, folder: Path, most_shard_bytes: int = MOST_SHARD_BYTES
) -> list[Path]:
    """Write a state dict as safetensors, tied weights by each of their names.

    Parameters
    ----------
    folder : a new one.
    most_shard_bytes : of a file; more weights are in several files with an index, as Hugging Face has them.

    Returns
    -------
    list of Path
        The files of weights.

    Raises
    ------
    WeightsError
        If the folder exists.
    """
    with new_path(folder) as place:
        place.mkdir(parents=True)
        sizes = {name: _num_bytes(tensor) for name, tensor in state.tensors.items()}
        names = write_safetensors(place, sizes, state.__getitem__, most_shard_bytes)
    return [folder / name for name in names]


def export_state_dict(state: StateDict, file: Path) -> Path:
    """Write a state dict with ``torch.save``; tied weights are stored once.

    Parameters
    ----------
    file : a new one.

    Raises
    ------
    WeightsError
        If the file exists.
    """
    first_names = {tensor.key: name for name, tensor in reversed(state.tensors.items())}
    stored = {key: state[name] for key, name in first_names.items()}
    with new_path(file) as place:
        place.parent.mkdir(parents=True, exist_ok=True)
        torch.save({name: stored[tensor.key] for name, tensor in state.tensors.items()}, place)
    return file


@contextmanager
def new_path(path: Path) -> Iterator[Path]:
    """Yield a path to write to instead of a new one, which is given its name when all of it is written.

    Raises
    ------
    WeightsError
        If there is something at the path already.
    """
    if os.path.lexists(path) and not (path.is_dir() and not any(path.iterdir())):
        raise WeightsError(f"{path} exists already; give another --output, or move it away")
    place = path.with_name(f".{path.name}.part")
    try:
        yield place
        os.replace(place, path)
    finally:
        if place.is_dir():
            shutil.rmtree(place, ignore_errors=True)
        else:
            place.unlink(missing_ok=True)


def write_safetensors(
    folder: Path, num_bytes: Mapping[str, int], read: Callable[[str], Tensor], most_shard_bytes: int
) -> list[str]:
    """Write tensors into as few files as their largest size allows, in their order; one file's are read at a time.

    Parameters
    ----------
    num_bytes : of each tensor, by name.
    read : reads a tensor.

    Returns
    -------
    list of str
        Names of the files. Several have an index beside them.
    """
    shards: list[list[str]] = []
    filled = math.inf
    for name, size in num_bytes.items():
        if filled + size > most_shard_bytes:
            shards.append([])
            filled = 0
        shards[-1].append(name)
        filled += size
    files = [_FILE] if len(shards) < 2 else [_SHARD.format(i + 1, len(shards)) for i in range(len(shards))]
    for file, names in zip(files, shards, strict=False):
        tensors = {name: read(name).contiguous() for name in names}
        save_file(tensors, folder / file, metadata={"format": "pt"})
    if len(shards) > 1:
        index = {
            "metadata": {"total_size": sum(num_bytes.values())},
            "weight_map": {name: file for file, names in zip(files, shards, strict=True) for name in names},
        }
        (folder / _INDEX).write_text(json.dumps(index, indent=2) + "\n")
    return files


def _num_bytes(tensor: ModuleTensor) -> int:
    return math.prod(tensor.shape) * tensor.dtype.itemsize
