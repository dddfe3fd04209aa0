"""The op ``trainyard::dropout``, whose mask depends only on where an element lies in its tensor.

It is one op in a graph, forward and backward. Whether it keeps an element is a pure
function of the seed, the step, the place of the call in the model (its salt) and the element's global
position: not of how the tensor is sharded, of how the batch is cut in microbatches, or of what was computed
before. So every plan of a program draws the same masks, recomputation draws them again, and no mask is kept
for the backward pass.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

NUM_BITS = 32
"""Bits of a random number compared with the drop probability."""

_MASK_64 = 2**64 - 1
_GOLDEN = 0x9E3779B97F4A7C15
_MULTIPLIERS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
_SHIFTS = (30, 27, 31)
# A thread that gets fewer elements than this costs more to wake than it saves.
_ELEMENTS_PER_THREAD = 1 << 19
_UNSIGNED = {2: torch.uint16, 4: torch.uint32, 8: torch.uint64}

torch.library.define(
    "trainyard::dropout",
    "(Tensor x, Tensor rng, float p, int salt, int batch_dim, int row_elements, SymInt[] global_shape, "
    "SymInt[] offsets) -> Tensor",
    tags=(torch.Tag.pt2_compliant_tag,),
)


def dropout(
    x: Tensor,
    rng: Tensor,
    p: float,
    salt: int,
    batch_dim: int = 0,
    row_elements: int = 0,
    global_shape: Sequence[int] | None = None,
    offsets: Sequence[int] | None = None,
) -> Tensor:
    """Zero elements with probability ``p`` and divide the others by ``1 - p``, by global position.

    Parameters
    ----------
    x : a part of the whole tensor (or all of it), floating point.
    rng : int64 [3]: seed, step, and the first row of the batch that this execution works on. Best kept on the
        CPU; reading it from another device waits for that device.
    p : probability of zeroing, in [0, 1].
    salt : which dropout of the model this is.
    batch_dim : the dimension that grows with the batch; outermost in the numbering of positions.
    row_elements : elements per row of the batch; 0 if the tensor does not grow with the batch.
    global_shape : shape of the whole tensor (of one execution); by default that of ``x``.
    offsets : where ``x`` begins in the whole tensor, by dimension; by default zeros.

    Returns
    -------
    Tensor
        Contiguous, of the shape and type of ``x``. A dropped element is zero whatever it was.
    """
    shape = list(x.shape) if global_shape is None else list(global_shape)
    start = [0] * x.dim() if offsets is None else list(offsets)
    result: Tensor = torch.ops.trainyard.dropout(x, rng, p, salt, batch_dim, row_elements, shape, start)
    return result


def mix64(z: int) -> int:
    """SplitMix64's finaliser: a well-mixed permutation of the 64-bit integers."""
    for shift, multiplier in zip(_SHIFTS[:2], _MULTIPLIERS, strict=True):
        z = ((z ^ (z >> shift)) * multiplier) & _MASK_64
    return z ^ (z >> _SHIFTS[2])


def stream_key(*parts: int) -> int:
    """One 64-bit key from several integers (seed, step, salt); every part changes all of it."""
    key = 0
    for part in parts:
        key = mix64((key + _GOLDEN + mix64((part + _GOLDEN) & _MASK_64)) & _MASK_64)
    return key


def position_strides(global_shape: Sequence[int], batch_dim: int) -> list[int]:
    """By how much the position grows along each dimension, with ``batch_dim`` outermost."""
    strides = [0] * len(global_shape)
    size = 1
    inner_to_outer = [d for d in reversed(range(len(global_shape))) if d != batch_dim]
    for d in [*inner_to_outer, *([batch_dim] if global_shape else [])]:
        strides[d] = size
        size *= global_shape[d]
    return strides


@lru_cache(maxsize=256)
def runs(shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[np.ndarray[Any, Any], int, int]:
    """Positions of a part's elements as equally long runs of equally spaced numbers.

    Returns
    -------
    starts : relative position of the first element of each run, uint64.
    length : elements in a run.
    stride : distance of positions in a run.
    """
    merged: list[tuple[int, int]] = []
    for size, stride in zip(shape, strides, strict=True):
        if size == 1:
            continue
        if merged and merged[-1][1] == size * stride:
            merged[-1] = (merged[-1][0] * size, stride)
        else:
            merged.append((size, stride))
    *outer, (length, last_stride) = merged or [(1, 1)]
    starts = np.zeros(1, np.uint64)
    for size, stride in outer:
        starts = (starts[:, None] + np.arange(size, dtype=np.uint64) * np.uint64(stride)).ravel()
    starts.setflags(write=False)
    return starts, length, last_stride


def _scaled(x: Tensor, p: float) -> Tensor:
    return x.contiguous() * (1.0 / (1.0 - p) if p < 1.0 else 0.0)


def _base(rng: Sequence[int], row_elements: int, strides: Iterable[int], offsets: Iterable[int]) -> int:
    return (rng[2] * row_elements + sum(s * o for s, o in zip(strides, offsets, strict=True))) & _MASK_64


def _dropout_cpu(
    x: Tensor, rng: Tensor, p: float, salt: int, batch_dim: int, row_elements: int, shape: Any, offsets: Any
) -> Tensor:
    from trainyard.program.random import kernels

    y = _scaled(x, p)
    if y.numel() == 0:
        return y
    where = part_of_stream(x.shape, rng, salt, batch_dim, row_elements, shape, offsets)
    bits = y.view(_UNSIGNED[y.element_size()]).view(-1).numpy()
    threshold = np.uint64(round(p * 2**NUM_BITS))

    def work(first: int, last: int) -> None:
        kernels.zero_dropped(bits, *where, threshold, first, last)

    in_threads(work, y.numel())
    return y


def part_of_stream(
    local: Sequence[int], rng: Tensor, salt: int, batch_dim: int, row_elements: int, shape: Any, offsets: Any
) -> tuple[np.ndarray[Any, Any], int, np.uint64, np.uint64]:
    """Which random numbers the elements of a part have: as the kernels of ``kernels`` take it.

    Returns
    -------
    lines : position of the first element of each run.
    length : elements in a run.
    stride : distance of positions in a run.
    key : of the stream.
    """
    numbers = rng.tolist()
    strides = position_strides(shape, batch_dim % max(1, len(shape)))
    starts, length, stride = runs(tuple(local), tuple(strides))
    base = _base(numbers, row_elements, strides, offsets)
    lines = starts + np.uint64(base) if base else starts
    return lines, length, np.uint64(stride), np.uint64(stream_key(numbers[0], numbers[1], salt))


def in_threads(work: Callable[[int, int], None], count: int) -> None:
    """Call ``work(first, last)`` for parts of ``range(count)``, in as many threads as PyTorch if long."""
    threads = min(torch.get_num_threads(), -(-count // _ELEMENTS_PER_THREAD))
    if threads <= 1:
        work(0, count)
        return
    bounds = [count * i // threads for i in range(threads + 1)]
    # Threads of our own: Numba's are not safe to use from two threads at once, nor after a fork.
    list(_pool(os.getpid(), torch.get_num_threads()).map(work, bounds[:-1], bounds[1:]))


@lru_cache(maxsize=1)
def _pool(process_id: int, threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix=f"dropout-{process_id}")


def dropout_by_arithmetic(
    x: Tensor, rng: Tensor, p: float, salt: int, batch_dim: int, row_elements: int, shape: Any, offsets: Any
) -> Tensor:
    """The same op in tensor arithmetic, for any device; the same masks bit for bit."""
    numbers = rng.tolist()
    position = positions(x.shape, numbers, x.device, batch_dim, row_elements, shape, offsets)
    z = numbers_at(position, stream_key(numbers[0], numbers[1], salt))
    dropped = shifted(z, 64 - NUM_BITS) < round(p * 2**NUM_BITS)
    y: Tensor = _scaled(x, p).masked_fill_(dropped, 0.0)
    return y


def positions(
    local: Sequence[int],
    rng: Sequence[int],
    device: torch.device,
    batch_dim: int,
    row_elements: int,
    shape: Any,
    offsets: Any,
) -> Tensor:
    """Global positions of a part's elements, by tensor arithmetic; int64, modulo 2**64."""
    strides = position_strides(shape, batch_dim % max(1, len(shape)))
    base = _signed(_base(rng, row_elements, strides, offsets))
    position = torch.full((), base, dtype=torch.int64, device=device)
    for d, (size, stride) in enumerate(zip(local, strides, strict=True)):
        along = torch.arange(size, device=device) * stride
        position = position + along.view(-1, *[1] * (len(local) - 1 - d))
    return position


def numbers_at(position: Tensor, key: int) -> Tensor:
    """The 64 random bits of a stream at some positions, by tensor arithmetic."""
    z = position * _signed(_GOLDEN) + _signed(key)
    for shift, multiplier in zip(_SHIFTS[:2], _MULTIPLIERS, strict=True):
        z = (z ^ shifted(z, shift)) * _signed(multiplier)
    return z ^ shifted(z, _SHIFTS[2])


def _signed(value: int) -> int:
    """The signed 64-bit integer with the same bits."""
    return value - 2**64 if value >= 2**63 else value


def shifted(z: Tensor, bits: int) -> Tensor:
    """Shift right as if unsigned; tensors have no unsigned shift."""
    result: Tensor = (z >> bits) & (2 ** (64 - bits) - 1)
    return result


@torch.library.register_fake("trainyard::dropout")
def _dropout_fake(x: Tensor, *_: Any) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(inputs[1])
    ctx.rest = inputs[2:]


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    (rng,) = ctx.saved_tensors
    return torch.ops.trainyard.dropout(grad, rng, *ctx.rest), *[None] * 7


torch.library.impl("trainyard::dropout", "cpu", _dropout_cpu)
torch.library.impl("trainyard::dropout", "cuda", dropout_by_arithmetic)
torch.library.register_autograd("trainyard::dropout", _backward, setup_context=_save)
