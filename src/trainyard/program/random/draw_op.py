"""The op ``trainyard::draw``: random numbers that depend only on where an element lies in its tensor.

Like ``trainyard::dropout`` it is a pure function of the seed, the step, the place of the call in the model (its salt)
and the element's global position, and the arguments of both ops stand in the same order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from trainyard.program.random.dropout_op import (
    in_threads,
    numbers_at,
    part_of_stream,
    positions,
    shifted,
    stream_key,
)

Distribution = Literal["uniform", "normal"]

# Random bits of a uniform number: as many as all numbers of [0, 1) in equal steps need in its type.
_BITS = {torch.float64: 53, torch.float32: 24, torch.float16: 11, torch.bfloat16: 8}
# Numbers of 16 bits are made in 32 and then rounded, which is exact for uniform ones.
_MADE_IN = {torch.float16: torch.float32, torch.bfloat16: torch.float32}

torch.library.define(
    "trainyard::draw",
    "(SymInt[] shape, Tensor rng, str distribution, int salt, int batch_dim, int row_elements, "
    "SymInt[] global_shape, SymInt[] offsets, *, ScalarType dtype, Device device) -> Tensor",
    tags=(torch.Tag.pt2_compliant_tag,),
)


def draw(
    shape: Sequence[int],
    rng: Tensor,
    distribution: Distribution,
    salt: int,
    batch_dim: int = 0,
    row_elements: int = 0,
    global_shape: Sequence[int] | None = None,
    offsets: Sequence[int] | None = None,
    *,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> Tensor:
    """Numbers uniform in [0, 1), or standard normal ones, by global position.

    Parameters
    ----------
    shape : of the part that is drawn, which may be all of the whole tensor.
    rng, salt, batch_dim, row_elements, global_shape, offsets : as of `trainyard.program.random.dropout_op.dropout`.
    distribution : ``uniform`` or ``normal``.
    dtype : floating point.
    """
    whole = list(shape) if global_shape is None else list(global_shape)
    start = [0] * len(shape) if offsets is None else list(offsets)
    result: Tensor = torch.ops.trainyard.draw(
        list(shape),
        rng,
        distribution,
        salt,
        batch_dim,
        row_elements,
        whole,
        start,
        dtype=dtype,
        device=device,
    )
    return result


def _draw_cpu(
    local: Any, rng: Tensor, distribution: str, *place: Any, dtype: torch.dtype, device: torch.device
) -> Tensor:
    if device.type != "cpu":
        return draw_by_arithmetic(local, rng, distribution, *place, dtype=dtype, device=device)
    from trainyard.program.random import kernels

    result = torch.empty(local, dtype=_MADE_IN.get(dtype, dtype))
    if result.numel() == 0:
        return result.to(dtype)
    where = part_of_stream(local, rng, *place)
    values = result.view(-1).numpy()

    def work(first: int, last: int) -> None:
        if distribution == "uniform":
            kernels.uniform(values, *where, _BITS[dtype], first, last)
        else:
            kernels.normal(values, *where, first, last)

    in_threads(work, result.numel())
    return result.to(dtype)


def draw_by_arithmetic(
    local: Any, rng: Tensor, distribution: str, *place: Any, dtype: torch.dtype, device: torch.device
) -> Tensor:
    """The same op in tensor arithmetic, for any device.

    Uniform numbers are the same bit for bit; normal ones as far as the device's logarithm and cosine of float64 are.

    Parameters
    ----------
    place : of the elements in the stream: salt, batch dimension, elements per row, whole shape and offsets.
    """
    salt, *rest = place
    numbers = rng.tolist()
    position = positions(local, numbers, device, *rest)
    key = stream_key(numbers[0], numbers[1], salt)
    if distribution == "uniform":
        return _unit(numbers_at(position, key), _BITS[dtype]).to(dtype)
    # Box and Muller's transform of two numbers of the element's own.
    first, second = (_unit(numbers_at(2 * position + i, key), 53) for i in (0, 1))
    radius = (-2.0 * (first + 2.0**-53).log()).sqrt()
    values = radius * (2.0 * math.pi * second).cos()
    return values.to(_MADE_IN.get(dtype, dtype)).to(dtype)


def _unit(numbers: Tensor, bits: int) -> Tensor:
    """Numbers of [0, 1) in float64, of the highest bits."""
    result: Tensor = shifted(numbers, 64 - bits).double() * 2.0**-bits
    return result


@torch.library.register_fake("trainyard::draw")
def _draw_fake(shape: Any, rng: Tensor, *_: Any, dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.empty(shape, dtype=dtype, device=device)


# Its only tensor is the counter, which is best kept on the CPU.
torch.library.impl("trainyard::draw", "cpu", _draw_cpu)
torch.library.impl("trainyard::draw", "cuda", draw_by_arithmetic)
