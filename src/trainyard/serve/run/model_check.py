"""Check of the model of a served folder: what its configuration asks for is counted, in a process with limits, before any
of it is made.

The model is made without storage there, and its parameters are compared with those that the files have. So sizes that are
wrong are refused whatever they are called, and whatever they would make grow.

Models that generate text are checked by a small model of the same kind, too (`small_model_check`). The outcome is
remembered beside the measurements of this machine, so that configurations that differ in sizes only are checked once.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache, partial
from math import prod
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

import psutil
import torch
import transformers
from safetensors import safe_open
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM
from transformers.utils.logging import disable_progress_bar, set_verbosity_error

from trainyard.distribution import VERSION
from trainyard.hardware.remembered import measurements_file, recall, remember
from trainyard.processes import LimitedProcess, LimitedProcessError, ProcessLimits
from trainyard.reading import shortened
from trainyard.serve.errors import ServeError
from trainyard.serve.run.folder_files import (
    TensorHeader,
    check_files,
    read_json,
    tensor_headers,
    weight_files,
)
from trainyard.serve.run.preloaded import preloaded_context, raise_serve_error
from trainyard.serve.run.quantized_weights import quantization_of, weights_of
from trainyard.serve.run.small_model_check import SmallModelCheck, check_small_model, kind_of

__all__ = ["check_model"]

_LIMITS = ProcessLimits(cpu_s=60.0, memory_bytes=2 << 30)
_MOST_BUFFER_BYTES = 1 << 30
_LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
_CLASSES = {"causal": AutoModelForCausalLM, "embedding": AutoModel}

Work = TypeVar("Work")
Result = TypeVar("Result")


class _Asked(NamedTuple):
    """Sizes that a model asks for, and those that its files have.

    Attributes
    ----------
    parameters, saved : numbers that are weights.
    buffer_bytes : of what it computes from its configuration and keeps.
    kind : its kind, if it generates text; see `small_model_check.kind_of`.
    """

    parameters: int
    saved: int
    buffer_bytes: int
    kind: str


def check_model(
    folder: Path, kind: Literal["causal", "embedding"], dtype: torch.dtype, unused: str = ""
) -> SmallModelCheck:
    """Refuse a folder whose model cannot be made of its files, or does not fit into the memory that is free.

    Parameters
    ----------
    kind : whether the model generates text or gives embeddings.
    dtype : type of its weights when it is computed.
    unused : beginning of the names of weights that need not be there; "" for none.

    Returns
    -------
    The check of all models of its kind.

    Raises
    ------
    ServeError
        Says what is wrong, and what is allowed.
    """
    check_files(folder)
    files = weight_files(folder)
    asked = _limited(folder, partial(_asked, files, kind, unused), folder)
    _check(folder, asked, dtype)
    if not asked.kind:
        return SmallModelCheck("")
    found = _checked(folder, asked.kind)
    if found.why_not:
        raise ServeError(f"{folder}: {found.why_not}")
    return found


def _limited(folder: Path, function: Callable[[Work], Result], work: Work) -> Result:
    """Call a function in a process with limits."""
    process = LimitedProcess[Work, Result](partial(_same, function), _LIMITS, None, preloaded_context)
    try:
        return process(work)
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


def _same(function: Callable[[Work], Result]) -> Callable[[Work], Result]:
    return function


def _checked(folder: Path, kind: str) -> SmallModelCheck:
    """Return the check of a kind of models, remembered or else computed."""
    made_of = (kind, transformers.__version__, torch.__version__, VERSION, _code())
    digest = hashlib.sha256("\n".join(made_of).encode()).hexdigest()[:16]
    path = measurements_file(f"model-{digest}")
    with suppress(ValueError, TypeError):  # of a damaged file
        why_not, calls_per_layer = json.loads(recall(path) or "")
        return SmallModelCheck(str(why_not), float(calls_per_layer))
    found = _limited(folder, check_small_model, kind)
    remember(path, json.dumps(found))
    return found


@cache
def _code() -> str:
    """Return a digest of the code that computes steps: other code may compute what this one does not."""
    files = sorted(Path(__file__).parent.glob("*.py"))
    return hashlib.sha256(b"".join(each.read_bytes() for each in files)).hexdigest()


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


def _asked(files: Sequence[Path], kind: str, unused: str, folder: Path) -> _Asked:
    """Count the sizes of a model: run in the process with limits."""
    disable_progress_bar()
    set_verbosity_error()
    headers = dict[str, TensorHeader]()
    for path in files:
        with safe_open(path, framework="np") as file:  # that of torch maps all of it into private memory
            headers |= tensor_headers(file)
    num_tensors = len(headers)
    weights = weights_of(headers, quantization_of(folder), folder)
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
        kind_of(config) if kind == "causal" else "",
    )


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:.3g} GiB"
