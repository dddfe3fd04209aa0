"""Images and signals: space is whole; images, and mostly channels, are independent."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from trainyard.program.algebra.notation import Dims, OpAxes
from trainyard.program.algebra.rules import leading, present, resized, rule, shapes

aten = torch.ops.aten

_FIRST = (frozenset({0}),)

_MAX_POOLS: dict[Any, int] = {
    aten.max_pool2d_with_indices.default: 2,
    aten.max_pool3d_with_indices.default: 3,
    aten.adaptive_max_pool2d.default: 2,
    aten.adaptive_max_pool3d.default: 3,
}
_LINEAR: dict[Any, int] = {
    aten.max_pool2d_with_indices_backward.default: 2,
    aten.max_pool3d_with_indices_backward.default: 3,
    aten.adaptive_max_pool2d_backward.default: 2,
    aten.adaptive_max_pool3d_backward.default: 3,
    aten.avg_pool2d.default: 2,
    aten.avg_pool2d_backward.default: 2,
    aten.avg_pool3d.default: 3,
    aten.avg_pool3d_backward.default: 3,
    aten._adaptive_avg_pool2d.default: 2,
    aten._adaptive_avg_pool2d_backward.default: 2,
    aten._adaptive_avg_pool3d.default: 3,
    aten._adaptive_avg_pool3d_backward.default: 3,
    aten.upsample_nearest1d.default: 1,
    aten.upsample_nearest2d.default: 2,
    aten.upsample_nearest3d.default: 3,
    aten._upsample_nearest_exact1d.default: 1,
    aten._upsample_nearest_exact2d.default: 2,
    aten._upsample_nearest_exact3d.default: 3,
    aten.upsample_linear1d.default: 1,
    aten.upsample_bilinear2d.default: 2,
    aten.upsample_bicubic2d.default: 2,
    aten.upsample_trilinear3d.default: 3,
    aten._upsample_bilinear2d_aa.default: 2,
    aten._upsample_bicubic2d_aa.default: 2,
    aten.max_unpool2d.default: 2,
    aten.max_unpool3d.default: 3,
    aten.reflection_pad1d.default: 1,
    aten.reflection_pad1d_backward.default: 1,
    aten.reflection_pad2d.default: 2,
    aten.reflection_pad2d_backward.default: 2,
    aten.reflection_pad3d.default: 3,
    aten.reflection_pad3d_backward.default: 3,
    aten.replication_pad1d.default: 1,
    aten.replication_pad1d_backward.default: 1,
    aten.replication_pad2d.default: 2,
    aten.replication_pad2d_backward.default: 2,
    aten.replication_pad3d.default: 3,
    aten.replication_pad3d_backward.default: 3,
    # In these, channels and space become each other.
    aten.pixel_shuffle.default: 3,
    aten.pixel_unshuffle.default: 3,
    aten.im2col.default: 3,
    aten.col2im.default: 2,
}
UPSAMPLE_BACKWARD: dict[Any, int] = {
    aten.upsample_nearest1d_backward.default: 1,
    aten.upsample_nearest2d_backward.default: 2,
    aten.upsample_nearest3d_backward.default: 3,
    aten._upsample_nearest_exact1d_backward.default: 1,
    aten._upsample_nearest_exact2d_backward.default: 2,
    aten._upsample_nearest_exact3d_backward.default: 3,
    aten.upsample_linear1d_backward.default: 1,
    aten.upsample_bilinear2d_backward.default: 2,
    aten.upsample_bicubic2d_backward.default: 2,
    aten.upsample_trilinear3d_backward.default: 3,
    aten._upsample_bilinear2d_aa_backward.default: 2,
    aten._upsample_bicubic2d_aa_backward.default: 2,
}
"""These name the size of their result."""

_WHOLE = {**_MAX_POOLS, **_LINEAR, **UPSAMPLE_BACKWARD}
"""How many of the last dimensions are whole."""


@rule(*_WHOLE)
def window(node: fx.Node) -> OpAxes:
    """What looks at neighbours: the dimensions before space are mapped; all but maxima are linear in operand 0."""
    linear = () if node.target in _MAX_POOLS else _FIRST
    return leading(node, len(shapes(node)[0]) - _WHOLE[node.target], linear)


@rule(aten.channel_shuffle.default)
def channel_shuffle(node: fx.Node) -> OpAxes:
    """Channels, which are whole, change places."""
    return resized(node, [1], _FIRST)


def _sampled(num_dims: int) -> tuple[Dims, Dims]:
    """Dimensions of images, and of the places in them that are looked at."""
    space: Dims = ((),) * num_dims
    return (("n",), ("c",), *space), (("n",), *space, ())


@rule(aten.grid_sampler_2d.default, aten.grid_sampler_3d.default)
def grid_sampler(node: fx.Node) -> OpAxes:
    """``n c h w, n y x 2 -> n c y x``."""
    image, _ = shapes(node)
    pixels, places = _sampled(len(image) - 2)
    return OpAxes((pixels, places), (pixels,), {"n": image[0], "c": image[1]}, linear=_FIRST)


@rule(aten.grid_sampler_2d_backward.default, aten.grid_sampler_3d_backward.default)
def grid_sampler_backward(node: fx.Node) -> OpAxes:
    """Gradients of the image and of the grid; the latter sums over channels."""
    image = shapes(node)[1]
    pixels, places = _sampled(len(image) - 2)
    results = present(node, (pixels, places))
    return OpAxes((pixels, pixels, places), results, {"n": image[0], "c": image[1]}, linear=_FIRST)


@rule(aten.affine_grid_generator.default)
def affine_grid(node: fx.Node) -> OpAxes:
    """``n 2 3 -> n y x 2``: the places that a transformation of each image looks at."""
    return leading(node, 1, _FIRST)
