"""How the hottest loops are compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from trainyard.compiling import compiled

__all__ = ["lean"]

_Function = TypeVar("_Function", bound=Callable[..., Any])


def lean(function: _Function) -> _Function:
    """Compile without reference counts on arrays: what is compiled so allocates nothing, and counting takes most time."""
    return compiled(function, nogil=True, error_model="numpy", _nrt=False)
