"""How hot loops over arrays are compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

from numba import njit

__all__ = ["compiled"]

_Function = TypeVar("_Function", bound=Callable[..., object])


def compiled(function: _Function) -> _Function:
    """Compile without reference counts on arrays: what is compiled so allocates nothing, and counting takes most time.

    Numba keeps compiled functions on disk, and notices a change in the file of a function but not in the files of those
    that it calls: who changes one touches the files of its callers, too.
    """
    return cast(_Function, njit(cache=True, nogil=True, error_model="numpy", _nrt=False)(function))  # type: ignore[call-overload]
