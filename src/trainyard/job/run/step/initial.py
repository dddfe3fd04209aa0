"""Initial values: the whole first value of every parameter and buffer, the same in every process."""

from __future__ import annotations

import copy
import zlib
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from trainyard.errors import TrainyardError
from trainyard.job.run.step.state import Values
from trainyard.program.model import Model
from trainyard.program.random.dropout_op import stream_key
from trainyard.zoo.initial import initial_value


class InitialValueError(TrainyardError, ValueError):
    """A value that cannot be known; the message names the entry and says what to do."""


def initial_values(model: Model, seed: int, build: Callable[[], Model] | None = None) -> Values:
    """Return whole initial values by path.

    A module that holds numbers keeps them. One on the meta device gets its values module by module: those of
    Trainyard's own models by ``trainyard.zoo.initial_value``, others by ``reset_parameters`` of the module that
    owns the parameter, under a seed made of ``seed`` and that module's path. What neither knows (buffers computed
    when the module was built, parameters of a module without ``reset_parameters``) is taken from a second copy of
    the model built on the CPU.

    Parameters
    ----------
    build : builds the model; called again only where needed, at most once.

    Returns
    -------
    A function from path to a tensor on the CPU.
    """
    entries: dict[str, Tensor] = dict(model.module.named_parameters(remove_duplicate=False))
    entries |= dict(model.module.named_buffers(remove_duplicate=False))
    ours = type(model.module).__module__.startswith("trainyard.zoo.")

    @lru_cache(maxsize=1)
    def whole() -> dict[str, Tensor]:
        return _built_again(model.name, build, seed)

    @lru_cache(maxsize=1)
    def reset(path: str) -> dict[str, Tensor]:
        return _reset(model.module.get_submodule(path), path, seed)

    def value(path: str) -> Tensor:
        held = entries[path]
        if held.device.type != "meta":
            return held.detach().cpu()
        is_param = isinstance(held, nn.Parameter)
        if ours and is_param:
            return initial_value(model.module, path, seed)
        owner, _, leaf = path.rpartition(".")
        known = reset(owner)
        return known[leaf] if leaf in known else _from(whole(), path)

    return value


def _reset(module: nn.Module, path: str, seed: int) -> dict[str, Tensor]:
    """Return the values that ``reset_parameters`` of one module writes, by name in that module."""
    if not hasattr(module, "reset_parameters"):
        return {}
    own = copy.copy(module)
    own._parameters = {
        n: None
        if p is None
        else nn.Parameter(torch.full(p.shape, torch.nan, dtype=p.dtype), p.requires_grad)
        if p.is_floating_point()
        else nn.Parameter(torch.zeros(p.shape, dtype=p.dtype), False)
        for n, p in module._parameters.items()
    }
    # Buffers of PyTorch's own layers (running statistics) are reset with the parameters; others may be constants.
    resettable = isinstance(module, nn.modules.batchnorm._NormBase)
    own._buffers = {
        n: torch.zeros(b.shape, dtype=b.dtype) if b is not None and resettable else b
        for n, b in module._buffers.items()
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(stream_key(seed, zlib.crc32(path.encode())) % 2**63)
        reset: Any = own.reset_parameters
        reset()
    found = {n: p.detach() for n, p in own._parameters.items() if p is not None and not p.isnan().any()}
    if resettable:
        found |= {n: b for n, b in own._buffers.items() if b is not None}
    return found


def _built_again(name: str, build: Callable[[], Model] | None, seed: int) -> dict[str, Tensor]:
    if build is None:
        return {}
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.manual_seed(seed)
        module = build().module
    values: dict[str, Tensor] = {n: p.detach() for n, p in module.named_parameters(remove_duplicate=False)}
    return values | dict(module.named_buffers(remove_duplicate=False))


def _from(built: dict[str, Tensor], path: str) -> Tensor:
    found = built.get(path)
    if found is None or found.device.type == "meta":
        raise InitialValueError(
            f"the initial value of {path!r} is not known: the model is on the meta device, the module that owns it "
            "has no reset_parameters, and building the model on the CPU does not give it either. Give "
            "the model as a function that builds it on the CPU, or compute the value in forward"
        )
    return found
