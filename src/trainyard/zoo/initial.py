"""Initial values by name: every process makes just its part of the same weights.

Published, simple choices: matrices normal with standard deviation 0.02 (Radford et al. 2018) unless their
module has another ``init_std``, convolutions as He et al. (ICCV 2015, fan out), scales of normalisation one,
biases zero.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from trainyard.program.random.dropout_op import in_threads, position_strides, runs, stream_key
from trainyard.reading.arguments import WrongValueError


def initial_value(module: nn.Module, name: str, seed: int, part: Sequence[slice] | None = None) -> Tensor:
    """Initial value of a parameter or buffer, or of a part of it.

    Parameters
    ----------
    module : the whole model, on any device, also meta; only shapes and types of its modules are looked at.
    name : as in ``named_parameters`` or ``named_buffers``.
    seed : other seeds give other values; the same seed the same in every process.
    part : a slice (step 1) per dimension; by default everything.

    Returns
    -------
    Tensor
        float32 on the CPU; int64 for an integer buffer.

    Raises
    ------
    WrongValueError
        If the model has no such entry, or it is a buffer whose value is not known.
    """
    path, _, leaf = name.rpartition(".")
    value = _entry(module, name)
    shape = tuple(value.shape)
    bounds = [s.indices(n)[:2] for s, n in zip(part or [slice(None)] * len(shape), shape, strict=True)]
    local = tuple(max(0, end - start) for start, end in bounds)
    owner = module.get_submodule(path)
    if not isinstance(value, nn.Parameter):
        return _buffer(owner, name, value, [slice(*b) for b in bounds])
    if len(shape) < 2:
        return torch.ones(local) if leaf == "weight" else torch.zeros(local)
    return normal(shape, bounds, stream_key(seed, zlib.crc32(name.encode()))) * _std(owner, shape)


def normal(shape: Sequence[int], bounds: Sequence[tuple[int, int]], key: int) -> Tensor:
    """A part of a tensor of standard normal numbers, float32.

    Parameters
    ----------
    shape : of the whole tensor.
    bounds : first and last (exclusive) index of the part, by dimension.
    key : which numbers (see ``stream_key``).
    """
    from trainyard.program.random import kernels

    local = tuple(max(0, end - start) for start, end in bounds)
    values = torch.empty(local)
    if values.numel():
        strides = position_strides(shape, 0)
        starts, length, stride = runs(local, tuple(strides))
        first = sum(b[0] * s for b, s in zip(bounds, strides, strict=True))
        lines, flat = starts + np.uint64(first), values.view(-1).numpy()
        in_threads(
            lambda a, b: kernels.normal(flat, lines, length, np.uint64(stride), np.uint64(key), a, b),
            values.numel(),
        )
    return values


def _entry(module: nn.Module, name: str) -> Tensor:
    found = dict(module.named_parameters(remove_duplicate=False)) | dict(module.named_buffers())
    if name not in found:
        raise WrongValueError(
            f"{type(module).__name__} has no parameter or buffer {name!r}; it has {', '.join(found)}"
        )
    return found[name]


def _std(owner: nn.Module, shape: tuple[int, ...]) -> float:
    if isinstance(owner, nn.modules.conv._ConvNd):
        # Variance 2 / fan out keeps the size of gradients through ReLU.
        return float((2 / (shape[0] * np.prod(shape[2:]))) ** 0.5)
    return float(getattr(owner, "init_std", 0.02))


def _buffer(owner: nn.Module, name: str, value: Tensor, part: list[slice]) -> Tensor:
    if isinstance(owner, nn.modules.batchnorm._BatchNorm):
        make = torch.ones if name.endswith("running_var") else torch.zeros
        whole = make(value.shape, dtype=torch.float32 if value.is_floating_point() else value.dtype)
        return whole[tuple(part)].clone()
    if value.device.type == "meta":
        raise WrongValueError(
            f"the initial value of buffer {name!r} ({type(owner).__name__}) is not known, because the model "
            "was built without data; compute it in forward, or build the model on the CPU"
        )
    return value.detach()[tuple(part)].to("cpu", copy=True)
