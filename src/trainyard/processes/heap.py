"""The memory of processes that compute: what they free they keep, in large pages."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["heap_environment", "heap_of_children"]

_TUNABLES = "GLIBC_TUNABLES"
_KEEP = {
    "hugetlb": 1,  # pages of 2 MiB, where the system offers them to those who ask
    "trim_threshold": 2**40,
    "mmap_threshold": 2**25,  # the most it allows; larger blocks go back to the system
}


def heap_environment() -> dict[str, str]:
    """Variables to start a process with, beside those of this one.

    A step of training frees all of its activations at its end, and glibc by itself returns the end of its heap to
    the system when 128 KiB of it are free: the next step would take thousands of pages again, one fault each.
    A C library that is not glibc does not read this; a user who has set the variable is not overruled.
    """
    if _TUNABLES in os.environ:
        return {}
    return {_TUNABLES: ":".join(f"glibc.malloc.{name}={value}" for name, value in _KEEP.items())}


@contextmanager
def heap_of_children() -> Iterator[None]:
    """Processes that are started meanwhile have these variables."""
    added = heap_environment()
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            del os.environ[name]
