"""Number formats of weights and of the KV cache."""

from __future__ import annotations

from types import MappingProxyType
from typing import NamedTuple

__all__ = ["FORMATS", "Format"]


class Format(NamedTuple):
    """The number format of weights, and what follows from it.

    Attributes
    ----------
    computed_in : format of matrix products, as `trainyard.hardware.devices.DTYPES` names it.
    num_bytes : bytes of a weight.
    cache_bytes : bytes of an element of the KV cache.
    """

    computed_in: str
    num_bytes: float
    cache_bytes: float = 2.0


FORMATS = MappingProxyType(
    {
        "float32": Format("float32", 4.0, 4.0),
        "float16": Format("float16", 2.0),
        "bfloat16": Format("bfloat16", 2.0),
        "float8": Format("float8", 1.0),
        # A scale of 8 bits for 16 weights, as in NVFP4; MXFP4 has one for 32.
        "float4": Format("float4", 0.5 + 1 / 16),
    }
)
"""Formats by name. A device without units for a format computes in the next wider one that it has."""
