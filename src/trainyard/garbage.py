"""Look for cycles of garbage rarely while many objects are made that stay."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["collecting_rarely"]


@contextmanager
def collecting_rarely() -> Iterator[None]:
    """Look for cycles of garbage only after many new objects, while the context lasts.

    Planning makes millions of objects that are nearly all kept (graphs refer to themselves everywhere), and looking
    through them again and again takes a fifth of its time.
    """
    before = gc.get_threshold()
    gc.set_threshold(2_000_000, 20, 100)
    try:
        yield
    finally:
        # What was made is old now: the next collection need not look through all of it.
        gc.freeze()
        gc.unfreeze()
        gc.set_threshold(*before)
