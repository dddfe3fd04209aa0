"""Bytes and rates as people read them."""

from __future__ import annotations

_GIB = 2**30


def size_text(num_bytes: float) -> str:
    """Bytes as people read them: ``11.2 GiB``, ``4.5 MiB``."""
    size = num_bytes / _GIB
    if size < 0.1:
        return f"{num_bytes / 2**20:.3g} MiB"
    return f"{size:.3g} GiB" if size < 999.5 else f"{size:,.0f} GiB"


def per_second_text(per_s: float) -> str:
    """Return a rate to four digits, without an exponent: ``39.1``, ``2,738,000``."""
    return f"{float(f'{per_s:.4g}'):,.15g}"
