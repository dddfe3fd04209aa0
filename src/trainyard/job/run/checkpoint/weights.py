"""Weights from files: read by name from what Trainyard, PyTorch or Hugging Face wrote, and loaded into a module.

No code from the files is run: safetensors are numbers with a header in JSON, and files that PyTorch pickled are read with
``weights_only=True``.
"""

from __future__ import annotations

import math
import pickle
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from trainyard.job.optimizer.config import EMA
from trainyard.job.run.checkpoint.contents import TensorEntry, read_contents, read_parts
from trainyard.job.run.checkpoint.module_record import module_record, named_tensors, read_module_record
from trainyard.job.run.checkpoint.same_run import PARAMS
from trainyard.job.run.checkpoint.saved import checkpoint_in, damage, read_run
from trainyard.job.run.checkpoint.snapshot import Part
from trainyard.job.run.errors import CheckpointError, WeightsError
from trainyard.program.boxes import boxes
from trainyard.reading import ReadingError, parse_json, read_text
from trainyard.reading.arguments import require_type

__all__ = ["Weights", "load_tensors", "load_weights", "read_weights"]

_INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
_FILES = ("model.safetensors", "pytorch_model.bin")
_PICKLED = (".pt", ".pth", ".bin", ".ckpt")
_ALLOWED = (
    "a folder of Hugging Face (model.safetensors or pytorch_model.bin, or their index), a .safetensors file, a state "
    "dict in a .pt, .pth or .bin file, or a checkpoint of Trainyard"
)
_MOST_NAMED = 4


@dataclass(frozen=True, eq=False)
class Weights(Mapping[str, Tensor]):
    """Whole tensors by name, each read from its file when it is asked for, on the CPU.

    Attributes
    ----------
    source : the file or folder.
    shapes : by name.
    read : reads a tensor.
    """

    source: Path
    shapes: Mapping[str, tuple[int, ...]]
    read: Callable[[str], Tensor]

    def __getitem__(self, name: str) -> Tensor:
        if name not in self.shapes:
            raise KeyError(name)
        return self.read(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.shapes)

    def __len__(self) -> int:
        return len(self.shapes)


def read_weights(path: Path, ema: bool = False) -> Weights:
    """Read weights that are stored in any of the usual forms.

    Parameters
    ----------
    path : a folder of Hugging Face, whose weights may be in several files; a ``.safetensors`` file; a file with a state
        dict (``torch.save(model.state_dict(), "model.pt")``); a checkpoint of Trainyard, or the folder of a run, of which
        the newest complete one is read. A checkpoint has tied weights by each of their names, and buffers.
    ema : read the moving average of each trained parameter in place of it, from a checkpoint of a run with ``ema_decay``.

    Returns
    -------
    Weights
        By name. A checkpoint has them with at least the precision of float32, the other forms as they were stored.

    Raises
    ------
    WeightsError
        If there are no weights, they cannot be read without running code, or there is no moving average.
    CheckpointError
        If the checkpoint is damaged.
    """
    require_type("path", path, (Path, str), "the path of a file or folder")
    path = Path(path)
    if path.is_dir() and (checkpoint := checkpoint_in(path)) is not None:
        return _of_checkpoint(checkpoint, ema)
    if ema:
        raise WeightsError(
            f"{path} is no checkpoint of Trainyard, which keeps the moving average; give a checkpoint, or ema=False"
        )
    try:
        if path.is_dir():
            return _of_folder(path)
        if path.suffix == ".safetensors":
            return _joined(path, [_of_safetensors(path)])
        if path.suffix in _PICKLED:
            return _of_pickle(path)
    except (OSError, SafetensorError, ReadingError) as error:
        raise WeightsError(f"the weights of {path} cannot be read: {error}; allowed is {_ALLOWED}") from error
    what = "is of no known kind" if path.exists() else "does not exist"
    raise WeightsError(f"{path} {what}; allowed is {_ALLOWED}")


def load_weights(module: nn.Module, weights: Weights | Path) -> None:
    """Give a module all of its parameters and buffers, in place.

    Tied weights stay tied, types and devices stay as they are, and a tensor on the meta device becomes one on the CPU.
    Nothing is changed if names or shapes do not agree.

    Parameters
    ----------
    weights : from `read_weights`, or what that reads, such as ``TrainResult.checkpoint``.

    Raises
    ------
    WeightsError
        If names or shapes are not those of the module; the message names them.
    """
    require_type("module", module, nn.Module, "the torch.nn.Module that gets the weights")
    weights = weights if isinstance(weights, Weights) else read_weights(weights)
    names_of: dict[int, list[str]] = {}
    tensors = named_tensors(module)
    for name, tensor in tensors.items():
        names_of.setdefault(id(tensor), []).append(name)
    optional = tensors.keys() - module.state_dict(keep_vars=True).keys()
    chosen = {
        tuple(names): next((name for name in names if name in weights.shapes), None)
        for names in names_of.values()
    }
    missing = [
        names[0] for names, found in chosen.items() if found is None and not optional.issuperset(names)
    ]
    _check_names(weights, missing, [name for name in weights if name not in tensors])
    _check_shapes(weights, {found: tensors[found] for found in chosen.values() if found is not None})
    with torch.no_grad():
        for names, found in chosen.items():
            if found is not None:
                _put(module, names, tensors[names[0]], weights[found])


def load_tensors(module: nn.Module, tensors: Iterable[tuple[str, Tensor]]) -> None:
    """Put the tensors of a run of a module into that module, as `load_weights` does.

    Parameters
    ----------
    tensors : by ``param/<first name>`` and ``buffer/<first name>``.
    """
    own = named_tensors(module)
    names_of: dict[str, list[str]] = {}
    for name, entry in module_record(module).tensors.items():
        names_of.setdefault(entry.key, []).append(name)
    with torch.no_grad():
        for key, value in tensors:
            _put(module, names_of[key], own[names_of[key][0]], value)


def _put(module: nn.Module, names: Iterable[str], target: Tensor, value: Tensor) -> None:
    value = value.reshape(target.shape)
    if not target.is_meta:
        target.copy_(value)
        return
    new = value.to(target.dtype, copy=True)
    if isinstance(target, nn.Parameter):
        new = nn.Parameter(new, target.requires_grad)
    for name in names:
        owner, _, leaf = name.rpartition(".")
        setattr(module.get_submodule(owner), leaf, new)


def _check_names(weights: Weights, missing: list[str], unknown: list[str]) -> None:
    parts = []
    if missing:
        parts.append(f"no {_listed(missing)}, which the module has")
    if unknown:
        parts.append(f"{_listed(unknown)}, which the module does not have")
    if parts:
        raise WeightsError(
            f"{weights.source} has {' and '.join(parts)}; give weights of the same module, or rename them"
        )


def _check_shapes(weights: Weights, targets: Mapping[str, Tensor]) -> None:
    for name, target in targets.items():
        given, own = weights.shapes[name], tuple(target.shape)
        if given != own:
            raise WeightsError(
                f"{name} has shape {given} in {weights.source} and {own} in the module; give weights of the same module"
            )


def _listed(names: list[str]) -> str:
    rest = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return ", ".join(names[:_MOST_NAMED]) + rest


def _of_folder(folder: Path) -> Weights:
    for name in _INDEXES:
        if (folder / name).is_file():
            return _joined(folder, [_of_file(folder / file) for file in _indexed(folder / name)])
    for name in _FILES:
        if (folder / name).is_file():
            return _joined(folder, [_of_file(folder / name)])
    raise WeightsError(f"{folder} has no weights; allowed is {_ALLOWED}")


def _indexed(index: Path) -> list[str]:
    """Return the files that an index names, which lie beside it."""
    given = parse_json(read_text(index), index)
    names = given.get("weight_map") if isinstance(given, dict) else None
    if not isinstance(names, dict) or not names or not all(_is_plain(name) for name in names.values()):
        raise WeightsError(
            f"{index} is no index of weights: weight_map is a mapping from names to files beside it"
        )
    return sorted(set(names.values()))


def _is_plain(name: Any) -> bool:
    return isinstance(name, str) and Path(name).name == name


def _of_file(file: Path) -> Weights:
    return _of_safetensors(file) if file.suffix == ".safetensors" else _of_pickle(file)


def _of_safetensors(file: Path) -> Weights:
    opened = safe_open(file, framework="pt")
    shapes = {name: tuple(opened.get_slice(name).get_shape()) for name in opened.keys()}  # noqa: SIM118
    return Weights(file, shapes, opened.get_tensor)


def _of_pickle(file: Path) -> Weights:
    try:
        found = torch.load(file, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(file))
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError) as error:
        first = str(error).strip().splitlines()[:1]
        raise WeightsError(
            f"{file} cannot be read as a state dict: {' '.join(first)} It may hold more than tensors, which would run "
            "code; save model.state_dict() by itself, or a .safetensors file"
        ) from error
    if not isinstance(found, Mapping) or not all(isinstance(value, Tensor) for value in found.values()):
        raise WeightsError(
            f"{file} is no mapping from names to tensors; save model.state_dict() by itself, without the optimizer"
        )
    return Weights(file, {str(name): tuple(value.shape) for name, value in found.items()}, found.__getitem__)


def _joined(source: Path, parts: list[Weights]) -> Weights:
    """Join the weights of several files."""
    home = {name: part for part in parts for name in part.shapes}
    shapes = {name: part.shapes[name] for name, part in home.items()}
    if len(shapes) != sum(map(len, parts)):
        raise WeightsError(f"{source} has a tensor in two files; give a folder with one model")
    return Weights(source, shapes, lambda name: home[name][name])


def _of_checkpoint(checkpoint: Path, ema: bool) -> Weights:
    if problem := damage(checkpoint):
        raise CheckpointError(problem)
    described = read_run(checkpoint)
    entries = read_contents(described, checkpoint)
    record = read_module_record(described, checkpoint)
    keys = {name: tensor.key for name, tensor in record.tensors.items()}
    if ema:
        averages = {key: f"{EMA}/{key.removeprefix(f'{PARAMS}/')}" for key in keys.values()}
        if not any(average in entries for average in averages.values()):
            raise WeightsError(
                f"{checkpoint} has no moving average; train with ema_decay (--ema-decay), or take the weights themselves"
            )
        # Parameters that are not trained have none.
        keys = {name: averages[key] if averages[key] in entries else key for name, key in keys.items()}
    for name, tensor in record.tensors.items():
        entry = entries.get(keys[name])
        if entry is None or math.prod(entry.shape) != math.prod(tensor.shape):
            raise CheckpointError(
                f"{checkpoint} has no tensor {keys[name]} of shape {tensor.shape} for {name}"
            )
    shapes = {name: tensor.shape for name, tensor in record.tensors.items()}
    return Weights(checkpoint, shapes, partial(_read, checkpoint, entries, keys, shapes))


def _read(
    checkpoint: Path,
    entries: Mapping[str, TensorEntry],
    keys: Mapping[str, str],
    shapes: Mapping[str, tuple[int, ...]],
    name: str,
) -> Tensor:
    entry = entries[keys[name]]
    part = Part(entry.shape, torch.empty(entry.shape, dtype=entry.dtype), boxes(entry.shape, {}, {}))
    read_parts(checkpoint, entries, {keys[name]: part})
    return part.tensor.reshape(shapes[name])
