"""How weights, and keys and values, are held by a server."""

from __future__ import annotations

from types import MappingProxyType
from typing import NamedTuple

__all__ = ["FORMATS", "Format"]


class Format(NamedTuple):
    """How weights are held.

    Attributes
    ----------
    computed_in : format of products, as `trainyard.hardware.devices.DTYPES` names it.
    num_bytes : of a weight.
    cache_bytes : of an element of keys and values.
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
"""How weights may be held, by name. A device without units for a format computes in the next wider one that it has."""
