"""Compiled loops over counter-based random numbers; imported only when the first one is drawn.

The generator is SplitMix64 used by position: number ``i`` of the stream ``key`` is
``mix(key + i * GOLDEN)``, so any part of a stream can be made without the rest of it.

References
----------
Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014.
Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011 (counters instead of state).
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numba
import numpy as np

from trainyard.compiling import compiled

U64 = np.uint64
GOLDEN = U64(0x9E3779B97F4A7C15)


@numba.njit(inline="always")
def mix(z: Any) -> Any:
    """One number of 64 random bits for each number, of SplitMix64."""
    z = (z ^ (z >> U64(30))) * U64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> U64(27))) * U64(0x94D049BB133111EB)
    return z ^ (z >> U64(31))


@partial(compiled, nogil=True)
def zero_dropped(
    values: Any, lines: Any, length: int, stride: Any, key: Any, threshold: Any, first: int, last: int
) -> None:
    """Zero the dropped ones among elements ``first`` to ``last - 1`` of a flat array, in place.

    Parameters
    ----------
    values : any unsigned integers; the bits of the numbers.
    lines : global index of the first element of every run of ``length`` elements, uint64.
    stride : by how much the global index grows along a run, uint64.
    key : of the stream, uint64.
    threshold : an element is dropped where the high 32 bits of its number are below this, uint64.
    """
    zero = values.dtype.type(0)
    position = first
    while position < last:
        line = position // length
        column = position - line * length
        count = min(length - column, last - position)
        start = key + (lines[line] + U64(column) * stride) * GOLDEN
        step = stride * GOLDEN
        # One plain loop over a slice per run: only so does the compiler vectorise it (six times faster).
        run = values[position : position + count]
        for i in range(count):
            if (mix(start + U64(i) * step) >> U64(32)) < threshold:
                run[i] = zero
        position += count


@partial(compiled, nogil=True)
def uniform(
    values: Any, lines: Any, length: int, stride: Any, key: Any, bits: int, first: int, last: int
) -> None:
    """Write numbers of [0, 1) by position, each of so many random bits, into a flat array (see ``zero_dropped``)."""
    unit = 2.0**-bits
    unused = U64(64 - bits)
    for position in range(first, last):
        line = position // length
        index = lines[line] + U64(position - line * length) * stride
        values[position] = float(mix(key + index * GOLDEN) >> unused) * unit


@partial(compiled, nogil=True)
def normal(values: Any, lines: Any, length: int, stride: Any, key: Any, first: int, last: int) -> None:
    """Write standard normal numbers by position into a flat array (see ``zero_dropped``)."""
    for position in range(first, last):
        line = position // length
        index = U64(2) * (lines[line] + U64(position - line * length) * stride)
        # Box and Muller's transform of two numbers of the element's own.
        a = mix(key + index * GOLDEN) >> U64(11)
        b = mix(key + (index + U64(1)) * GOLDEN) >> U64(11)
        radius = math.sqrt(-2.0 * math.log((float(a) + 1.0) * 2.0**-53))
        values[position] = radius * math.cos(2.0 * math.pi * float(b) * 2.0**-53)
