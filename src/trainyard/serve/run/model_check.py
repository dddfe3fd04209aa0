"""Check of the model of a served folder: what its configuration asks for is counted, in a process with limits, before any
of it is made.

The model is made without storage there, and its parameters are compared with those that the files have. So sizes that are
wrong are refused whatever they are called, and whatever they would make grow.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from pathlib import Path
from typing import Any, Literal, NamedTuple

import psutil
import torch
from safetensors import safe_open
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM
from transformers.utils.logging import disable_progress_bar, set_verbosity_error

from trainyard.processes import LimitedProcess, LimitedProcessError, ProcessLimits
from trainyard.reading import shortened
from trainyard.serve.errors import ServeError
from trainyard.serve.run.folder_files import check_files, read_json, weight_files
from trainyard.serve.run.preloaded import preloaded_context, raise_serve_error
from trainyard.serve.run.quantized_weights import Stored, quantization_of, weights_of

__all__ = ["check_model"]

_LIMITS = ProcessLimits(cpu_s=60.0, memory_bytes=2 << 30)
_MOST_BUFFER_BYTES = 1 << 30
_LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
_CLASSES = {"causal": AutoModelForCausalLM, "embedding": AutoModel}


class _Asked(NamedTuple):
    """Sizes that a model asks for, and those that its files have.

    Attributes
    ----------
    parameters, saved : numbers that are weights.
    buffer_bytes : of what it computes from its configuration and keeps.
    """

    parameters: int
    saved: int
    buffer_bytes: int


def check_model(
    folder: Path, kind: Literal["causal", "embedding"], dtype: torch.dtype, unused: str = ""
) -> None:
    """Refuse a folder whose model cannot be made of its files, or does not fit into the memory that is free.

    Parameters
    ----------
    kind : whether the model generates text or gives embeddings.
    dtype : type of its weights when it is computed.
    unused : beginning of the names of weights that need not be there; "" for none.

    Raises
    ------
    ServeError
        Says what is wrong, and what is allowed.
    """
    check_files(folder)
    files = weight_files(folder)
    process = LimitedProcess[Path, _Asked](
        partial(_prepared, files, kind, unused), _LIMITS, None, preloaded_context
    )
    try:
        asked = process(folder)
    except LimitedProcessError as error:
        raise_serve_error(error)
        then = (
            "try again"
            if error.may_succeed_later
            else "give a folder with a sound configuration, or a smaller model"
        )
        raise ServeError(f"reading {folder} {shortened(' '.join(str(error).split()))}; {then}") from error
    finally:
        process.close()
    _check(folder, asked, dtype)


def _check(folder: Path, asked: _Asked, dtype: torch.dtype) -> None:
    if asked.parameters > asked.saved:
        raise ServeError(
            f"{folder}/config.json asks for {asked.parameters:,} weights, and the safetensors have {asked.saved:,}; give "
            "a folder with all weights of its model"
        )
    if asked.buffer_bytes > _MOST_BUFFER_BYTES:
        raise ServeError(
            f"{folder}/config.json asks for {_gib(asked.buffer_bytes)} beside the weights; allowed are "
            f"{_gib(_MOST_BUFFER_BYTES)}; give smaller sizes"
        )
    needed, free = asked.parameters * dtype.itemsize, psutil.virtual_memory().available
    if needed > free:
        raise ServeError(
            f"{folder} has {_gib(needed)} of weights, and {_gib(free)} of memory are free; give a smaller "
            "model, or --dtype bfloat16"
        )


def _prepared(files: Sequence[Path], kind: str, unused: str) -> Callable[[Path], _Asked]:
    return partial(_asked, files, kind, unused)


def _asked(files: Sequence[Path], kind: str, unused: str, folder: Path) -> _Asked:
    """Count the sizes of a model: run in the process with limits."""
    disable_progress_bar()
    set_verbosity_error()
    stored: dict[str, Stored] = {}
    for path in files:
        with safe_open(path, framework="np") as file:  # that of torch maps all of it into private memory
            for name in file.keys():  # noqa: SIM118
                part = file.get_slice(name)
                stored[name] = Stored(part.get_dtype(), tuple(part.get_shape()))
    num_tensors = len(stored)
    weights = weights_of(stored, quantization_of(folder), folder)
    given = read_json(folder / "config.json")
    for name in _LAYERS:
        if isinstance(number := given.get(name), int) and number > num_tensors:
            raise ServeError(
                f"{folder}/config.json has {name} {number}, and the safetensors have {num_tensors} tensors; give a "
                "folder with all weights of its model"
            )
    config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    with torch.device("meta"):
        model: Any = _CLASSES[kind].from_config(config, trust_remote_code=False)
    parameters = [
        each for name, each in model.named_parameters() if not unused or not name.startswith(unused)
    ]
    return _Asked(
        sum(each.numel() for each in parameters),
        sum(prod(weight.shape) for weight in weights.values()),
        sum(each.numel() * each.element_size() for each in model.buffers()),
    )


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:.3g} GiB"
