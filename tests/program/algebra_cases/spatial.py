"""Arguments of ops on images and signals."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from algebra_cases.drawing import Draw, case

aten = torch.ops.aten

_SPACE = (6, 4, 5)


def _image(d: Draw, num_dims: int) -> Tensor:
    """One number per channel and place: [n, c, *space], or [c, *space]."""
    lead = d.pick((d.size(), d.size()), (d.size(),))
    return d.real(*lead, *_SPACE[:num_dims])


def _batch(d: Draw, num_dims: int) -> Tensor:
    return d.real(d.size(), d.size(), *_SPACE[:num_dims])


def _op(name: str) -> Any:
    return getattr(aten, name).default


def _gradient(d: Draw, result: Any) -> Tensor:
    return d.real(*(result[0] if isinstance(result, tuple) else result).shape)


def _register_pools(n: int) -> None:
    average, largest = f"avg_pool{n}d", f"max_pool{n}d_with_indices"
    mean, adaptive = f"_adaptive_avg_pool{n}d", f"adaptive_max_pool{n}d"
    window, rest = ([2] * n, [2] * n), ([0] * n, False, True, None)

    @case(_op(average), _op(largest))
    def _pool(d: Draw) -> tuple[Any, ...]:
        return _image(d, n), *window

    @case(_op(mean), _op(adaptive))
    def _to_size(d: Draw) -> tuple[Any, ...]:
        return _image(d, n), [2] * n

    @case(_op(f"{average}_backward"))
    def _average_backward(d: Draw) -> tuple[Any, ...]:
        x = _image(d, n)
        return _gradient(d, _op(average)(x, *window, *rest)), x, *window, *rest

    @case(_op(f"{largest}_backward"))
    def _largest_backward(d: Draw) -> tuple[Any, ...]:
        x = _image(d, n)
        result, indices = _op(largest)(x, *window)
        return _gradient(d, result), x, *window, [0] * n, [1] * n, False, indices

    @case(_op(f"{mean}_backward"))
    def _mean_backward(d: Draw) -> tuple[Any, ...]:
        x = _image(d, n)
        return _gradient(d, _op(mean)(x, [2] * n)), x

    @case(_op(f"{adaptive}_backward"))
    def _adaptive_backward(d: Draw) -> tuple[Any, ...]:
        x = _image(d, n)
        result, indices = _op(adaptive)(x, [2] * n)
        return _gradient(d, result), x, indices


def _register_resizing(n: int, name: str, *options: Any) -> None:
    @case(_op(name))
    def _upsample(d: Draw) -> tuple[Any, ...]:
        return _batch(d, n), [s * d.pick(1, 2) for s in _SPACE[:n]], *options

    @case(_op(f"{name}_backward"))
    def _upsample_backward(d: Draw) -> tuple[Any, ...]:
        x, size, *_ = _upsample(d)
        return _gradient(d, _op(name)(x, size, *options)), size, list(x.shape), *options


def _register_padding(n: int, name: str) -> None:
    @case(_op(name))
    def _pad(d: Draw) -> tuple[Any, ...]:
        return _image(d, n), [d.pick(0, 1, 2) for _ in range(2 * n)]

    @case(_op(f"{name}_backward"))
    def _pad_backward(d: Draw) -> tuple[Any, ...]:
        x, amounts = _pad(d)
        return _gradient(d, _op(name)(x, amounts)), x, amounts


for _n in (2, 3):
    _register_pools(_n)
for _kind in ("bilinear", "bicubic"):
    _register_resizing(2, f"_upsample_{_kind}2d_aa", False)
for _n, _smooth in ((1, ["linear"]), (2, ["bilinear", "bicubic"]), (3, ["trilinear"])):
    _register_resizing(_n, f"upsample_nearest{_n}d")
    _register_resizing(_n, f"_upsample_nearest_exact{_n}d")
    for _kind in _smooth:
        _register_resizing(_n, f"upsample_{_kind}{_n}d", False)
    for _kind in ("reflection", "replication"):
        _register_padding(_n, f"{_kind}_pad{_n}d")


@case(aten.pixel_shuffle.default)
def _pixel_shuffle(d: Draw) -> tuple[Any, ...]:
    return d.real(*d.shape(0, 2), 8, 2, 3), 2


@case(aten.pixel_unshuffle.default)
def _pixel_unshuffle(d: Draw) -> tuple[Any, ...]:
    return d.real(*d.shape(0, 2), 2, 4, 6), 2


@case(aten.channel_shuffle.default)
def _channel_shuffle(d: Draw) -> tuple[Any, ...]:
    return d.real(d.size(), 4, d.size(), 2), 2


@case(aten.im2col.default)
def _im2col(d: Draw) -> tuple[Any, ...]:
    return _batch(d, 2), [2, 2], [1, 1], [0, 0], [1, 1]


@case(aten.col2im.default)
def _col2im(d: Draw) -> tuple[Any, ...]:
    image, *windows = _im2col(d)
    columns = aten.im2col.default(image, *windows)
    return d.real(*columns.shape), list(image.shape[2:]), *windows


def _register_sampling(n: int) -> None:
    @case(_op(f"grid_sampler_{n}d"))
    def _grid_sampler(d: Draw) -> tuple[Any, ...]:
        image = _batch(d, n)
        return image, d.real(image.shape[0], *[2] * n, n), 0, 0, False

    @case(_op(f"grid_sampler_{n}d_backward"))
    def _grid_sampler_backward(d: Draw) -> tuple[Any, ...]:
        image, grid, *modes = _grid_sampler(d)
        result = _op(f"grid_sampler_{n}d")(image, grid, *modes)
        return _gradient(d, result), image, grid, *modes, [d.pick(True, False), True]

    @case(_op(f"max_unpool{n}d"))
    def _unpool(d: Draw) -> tuple[Any, ...]:
        x = d.real(d.size(), d.size(), *[4] * n)
        small, indices = _op(f"max_pool{n}d_with_indices")(x, [2] * n, [2] * n)
        return small, indices, [4] * n, *(([2] * n, [0] * n) if n == 3 else ())


for _n in (2, 3):
    _register_sampling(_n)


@case(aten.affine_grid_generator.default)
def _affine_grid(d: Draw) -> tuple[Any, ...]:
    rows = d.size()
    return d.pick(
        (d.real(rows, 2, 3), [rows, 1, 3, 2], False), (d.real(rows, 3, 4), [rows, 1, 3, 2, 2], True)
    )
