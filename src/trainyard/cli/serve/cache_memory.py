"""Sizes of KV caches on the command line."""

from __future__ import annotations

from trainyard.cli.serve.requests import quantity
from trainyard.serve.errors import ServeError

__all__ = ["cache_bytes", "host_cache_bytes"]


def cache_bytes(cache_memory: str | None, cache_blocks: int | None) -> int | None:
    """What ``--cache-memory`` says; None if it is not given.

    Raises
    ------
    ServeError
        If ``--cache-blocks`` is given, too.
    """
    num_bytes = _bytes("--cache-memory", cache_memory)
    if num_bytes is not None and cache_blocks is not None:
        raise ServeError("--cache-blocks and --cache-memory both say how large the cache is; give one")
    return num_bytes


def host_cache_bytes(host_cache_memory: str | None) -> int:
    """What ``--host-cache-memory`` says; 0 if it is not given."""
    return _bytes("--host-cache-memory", host_cache_memory) or 0


def _bytes(option: str, text: str | None) -> int | None:
    from trainyard.reading.quantities import parse_bytes

    return None if text is None else quantity(option, text, parse_bytes)
