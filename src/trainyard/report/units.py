"""Quantities as people read them."""

from __future__ import annotations

import math

from trainyard.reading import count_text

__all__ = [
    "bytes_text",
    "count_text",
    "duration_text",
    "number_text",
    "percent_text",
    "rate_text",
    "seconds_text",
]


def seconds_text(seconds: float) -> str:
    """Seconds in the unit that keeps three digits: ``12.3 ms``.

    Parameters
    ----------
    seconds
        Not negative.
    """
    for unit, per_s in (("s", 1.0), ("ms", 1e3), ("µs", 1e6)):
        if seconds * per_s >= 1.0 or unit == "µs":
            return f"{_three_digits(seconds * per_s)} {unit}"
    raise AssertionError


def bytes_text(num_bytes: float) -> str:
    """Bytes in binary units: ``1.50 GiB``."""
    for unit, scale in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if num_bytes >= scale:
            return f"{_three_digits(num_bytes / scale)} {unit}"
    return f"{num_bytes:.0f} B"


def rate_text(per_s: float, unit: str) -> str:
    """A rate in decimal units: ``312 Tflop/s``, ``2.04 TB/s``.

    Parameters
    ----------
    per_s
        Of the unit, per second.
    unit
        Such as ``flop`` or ``B``.
    """
    for prefix, scale in (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6)):
        if per_s >= scale:
            return f"{_three_digits(per_s / scale)} {prefix}{unit}/s"
    return f"{_three_digits(per_s)} {unit}/s"


def percent_text(share: float) -> str:
    """A share of one: ``41.5 %``."""
    return f"{100 * share:.1f} %"


def number_text(value: float, digits: int) -> str:
    """A number of any unit to so many digits, and never with an exponent where it is large: ``2952852``."""
    return f"{value:.0f}" if abs(value) >= 10.0**digits else f"{value:.{digits}g}"


def _three_digits(value: float) -> str:
    if not math.isfinite(value):
        return str(value)
    decimals = 2 if value < 9.995 else 1 if value < 99.95 else 0
    return f"{value:,.{decimals}f}"


def duration_text(seconds: float) -> str:
    """Times of jobs: seconds, minutes, hours or days, such as ``27.5 min``."""
    for unit, size_s in (("d", 86_400.0), ("h", 3_600.0), ("min", 60.0)):
        if seconds >= 2 * size_s:
            return f"{seconds / size_s:.1f} {unit}"
    return f"{seconds:.1f} s"
