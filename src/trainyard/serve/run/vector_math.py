"""Small compiled functions that LLVM turns into vector instructions where a loop calls them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import numpy as np

from trainyard.compiling import compiled

__all__ = ["exp", "fast", "highest", "tanh"]

_FAST = {"reassoc", "contract", "nsz", "arcp", "afn"}
"""What may change about the order of sums; infinities and numbers that are none (NaN) stay what they are."""

f32 = np.float32
i32 = np.int32

_Function = TypeVar("_Function", bound=Callable[..., Any])


def fast(function: _Function) -> _Function:
    """Compile as `lean` does, with the terms of sums in an order that suits vector instructions."""
    return compiled(function, nogil=True, error_model="numpy", _nrt=False, fastmath=_FAST)


@partial(compiled, nogil=True, error_model="numpy", _nrt=False, fastmath=_FAST | {"nnan"})
def highest(values: Any) -> Any:
    """The highest of some float32; minus infinity if there is none, and any of them if one is no number."""
    found = f32(-np.inf)
    for i in range(len(values)):
        found = max(found, values[i])
    return found


@fast
def exp(x: Any) -> Any:
    """e to the power of a float32 of at most 0, to a relative error of 2e-7; 0 below -87.

    The C library's would be called for one number at a time. The polynomial is that of the Cephes library: e**x is
    2**n * e**r, with n the nearest whole number to x / log(2).
    """
    n = np.floor(max(x, f32(-88.0)) * f32(1.44269504) + f32(0.5))
    r = x - n * f32(0.693359375) + n * f32(2.12194440e-4)
    p = f32(1.9875691500e-4)
    p = p * r + f32(1.3981999507e-3)
    p = p * r + f32(8.3334519073e-3)
    p = p * r + f32(4.1665795894e-2)
    p = p * r + f32(1.6666665459e-1)
    p = p * r + f32(5.0000001201e-1)
    p = p * r * r + r + f32(1.0)
    power = i32((i32(n) + i32(127)) << i32(23)).view(f32)
    return f32(0.0) if x < f32(-87.0) else p * power


@fast
def tanh(x: Any) -> Any:
    """Compute the hyperbolic tangent of a float32, to a relative error of 3e-7, by a polynomial of the Cephes library."""
    square = x * x
    p = f32(-5.70498872745e-3)
    p = p * square + f32(2.06390887954e-2)
    p = p * square - f32(5.37397155531e-2)
    p = p * square + f32(1.33314422036e-1)
    p = p * square - f32(3.33332819422e-1)
    size = abs(x)
    small = exp(f32(-2.0) * size)
    large = np.copysign((f32(1.0) - small) / (f32(1.0) + small), x)
    return p * square * x + x if size < f32(0.625) else large
