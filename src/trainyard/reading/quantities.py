"""Quantities as people write them: a number and its unit."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType

from trainyard.reading.errors import ReadingError, shown

__all__ = ["BYTES", "bytes_as_given", "parse_bytes", "parse_seconds", "seconds_as_given"]

BYTES: Mapping[str, float] = MappingProxyType(
    {
        **{f"{prefix}B": 1000.0**power for power, prefix in enumerate(("k", "M", "G", "T"), 1)},
        **{f"{prefix}iB": 1024.0**power for power, prefix in enumerate(("K", "M", "G", "T"), 1)},
    }
)
"""Bytes of a unit: GB are 10^9, GiB 2^30."""
_SECONDS = MappingProxyType({"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0})
_FORM = re.compile(r"(\d{1,15}(?:\.\d{1,15})?) ?([A-Za-z]+)", re.ASCII)


def parse_seconds(text: str) -> float:
    """Seconds of a time such as ``500ms``, ``1.5s`` or ``2min``.

    Raises
    ------
    ReadingError
        If it is none, or is 0.
    """
    return _parsed(text, _SECONDS, "a time", "500ms")


def parse_bytes(text: str) -> int:
    """Bytes of a size such as ``40GB`` or ``37.5GiB``.

    Raises
    ------
    ReadingError
        If it is none, or is 0.
    """
    return round(_parsed(text, BYTES, "a size", "40GB"))


def seconds_as_given(seconds: float) -> str:
    """Return a time as text for `parse_seconds`. Its unit is the largest one that makes the number whole."""
    return _as_given(seconds, _SECONDS, "s")


def bytes_as_given(num_bytes: float) -> str:
    """Return a size as text for `parse_bytes`. Its unit is the largest one that makes the number whole."""
    return _as_given(num_bytes, BYTES, "kB")


def _as_given(value: float, units: Mapping[str, float], usual: str) -> str:
    # 15 digits hide the rounding of a division: 31e-6 / 1e-6 is not 31.
    texts = {unit: f"{value / size:.15g}" for unit, size in units.items()}
    whole = [unit for unit, text in texts.items() if value and text.isdecimal()]
    unit = max(whole, key=units.__getitem__, default=usual)
    return f"{texts[unit]}{unit}"


def _parsed(text: str, units: Mapping[str, float], what: str, example: str) -> float:
    match = _FORM.fullmatch(text.strip())
    value = float(match[1]) * units.get(match[2], 0.0) if match else 0.0
    if not value > 0:
        raise ReadingError(
            f"{shown(text)} is not {what}; allowed is a number above 0 and one of {', '.join(units)}, such as {example}"
        )
    return value
