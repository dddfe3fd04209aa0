"""How hot loops over arrays are compiled, and kept on disk until what they are made of changes.

Numba keeps compiled functions beside their files, and compiles one anew when its own file has changed. What it takes from
other files, constants and the functions that it calls, is inside what is kept: a change there would go unnoticed, and the
next run would compute with what was before. So the stamp by which Numba tells covers these, too.

A compiled function may be an argument of another one, which is compiled for it anew, as a template is. Numba tells such
arguments apart by names that it draws for them in every process, so that it would find nothing on disk: here a function's
name and stamp are its name for good.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from mmap import mmap
from typing import Any, TypeVar, cast

import numpy as np
from numba import config, njit
from numba.core.caching import FunctionCache
from numba.core.dispatcher import Dispatcher
from numpy.typing import NDArray

from trainyard.caches import go_without

__all__ = ["compiled", "compiling_is_said", "lean", "records"]

_WHAT = "compiled functions"
_say: ContextVar[Callable[[], None] | None] = ContextVar("_say", default=None)

_Function = TypeVar("_Function", bound=Callable[..., Any])


def compiled(function: _Function, **options: Any) -> _Function:
    """Compile a function when it is first called; later runs find it on disk.

    Parameters
    ----------
    options : of ``numba.njit``.
    """
    dispatcher: Any = njit(**options)(function)
    if hasattr(dispatcher, "_cache"):  # not where Numba is told to compile nothing
        try:
            dispatcher._cache = _ForgivingCache(function)
        except RuntimeError as error:  # Numba's own words for folders that cannot be written
            go_without(_WHAT, "no folder", error)
    index = _index_of(dispatcher)
    if index is not None:
        index._source_stamp = _stamp(function.__globals__, index._source_stamp)
        # Functions of one definition that close over different values need names of their own.
        if function.__closure__ is None:
            dispatcher._set_uuid(f"{function.__module__}.{function.__qualname__}:{index._source_stamp}")
    return cast(_Function, dispatcher)


def lean(function: _Function) -> _Function:
    """Compile without reference counts on arrays: for small functions that make none and return none.

    To count who refers to the arrays that a function is given takes longer than what it does.
    """
    return compiled(function, nogil=True, error_model="numpy", _nrt=False)


def records(num: int, dtype: np.dtype[np.void]) -> NDArray[np.void]:
    """An array of records for compiled functions, all 0; where nothing is compiled, fields are attributes, too."""
    made, settings = np.zeros(num, dtype), cast(Any, config)
    return made.view(_FieldsFirst) if settings.DISABLE_JIT else made


class _FieldsFirst(np.recarray[Any, Any]):
    """Records whose fields are attributes, also a field that has the name of a method, such as ``partition``."""

    def __getattribute__(self, name: str) -> Any:
        fields = object.__getattribute__(self, "dtype").fields
        return self[name] if fields and name in fields else super().__getattribute__(name)


@contextmanager
def compiling_is_said(say: Callable[[str], None], what: str) -> Iterator[None]:
    """Say it, once, when something is not on disk and has to be compiled, which may take a minute.

    Processes that are forked meanwhile do not say it again.

    Parameters
    ----------
    say : takes the message.
    what : is being compiled, in words.
    """
    is_said = mmap(-1, 1)  # memory that forked processes share

    def say_once() -> None:
        _say.set(None)
        if not is_said[0]:
            is_said[0] = 1
            say(
                f"compiling {what} for the first time, which takes about a minute; later runs find it on disk"
            )

    token = _say.set(say_once)
    try:
        yield
    finally:
        _say.reset(token)


class _ForgivingCache(FunctionCache):
    """Numba's cache of a function, for which damaged files and full disks are a reason to compile, not to fail."""

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        found = None
        try:
            found = super().load_overload(sig, target_context)
        except Exception as error:  # of a damaged file, any
            go_without(_WHAT, self.cache_path, error)
            self._try(self.flush)
        if found is None and (say := _say.get()) is not None:
            say()
        return found

    def save_overload(self, sig: Any, data: Any) -> None:
        self._try(lambda: super(_ForgivingCache, self).save_overload(sig, data))

    def _try(self, write: Callable[[], object]) -> None:
        try:
            write()
        except OSError as error:
            go_without(_WHAT, self.cache_path, error)


def _index_of(function: Any) -> Any:
    """Numba's note of what is on disk of a function; None if nothing is, as where Numba is told to compile nothing."""
    return getattr(getattr(function, "_cache", None), "_cache_file", None)


def _stamp(names: Mapping[str, Any], own_file: object) -> str:
    """Of a function: its file, and what the names stand for that it may use; imports come before functions."""
    parts = [own_file, *(_made_of(name, names[name]) for name in sorted(names))]
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def _made_of(name: str, value: Any) -> object:
    """What of a value ends up in compiled functions that use it; None for what cannot."""
    if isinstance(value, Dispatcher):
        index = _index_of(value)
        # One that is not kept by itself becomes a part of who calls it.
        return name, value.py_func.__code__.co_code if index is None else index._source_stamp
    if isinstance(value, np.ndarray):
        return name, value.dtype.str, value.tobytes()
    is_constant = isinstance(value, (int, float, complex, str, tuple, np.generic))
    return (name, value) if is_constant and not name.startswith("__") else None
