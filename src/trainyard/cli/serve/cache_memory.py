"""Sizes of KV caches on the command line."""

from __future__ import annotations

from trainyard.serve.errors import ServeError

__all__ = ["cache_bytes"]


def cache_bytes(cache_memory: int | None, cache_blocks: int | None) -> int | None:
    """Return the bytes of ``--cache-memory``; None if it is not given.

    Raises
    ------
    ServeError
        If ``--cache-blocks`` is given, too.
    """
    if cache_memory is not None and cache_blocks is not None:
        raise ServeError("--cache-blocks and --cache-memory both say how large the cache is; give one")
    return cache_memory
