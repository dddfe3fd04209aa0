"""Compile hot loops over arrays, and keep them on disk until what they are made of changes.

Numba keeps compiled functions beside their files, and compiles one anew when its own file has changed. What it takes from
other files, constants and the functions that it calls, is inside what is kept: a change there would go unnoticed, and the
next run would compute with what was before. So the stamp by which Numba tells covers these, too.

Compiling takes a second for most functions, and small work takes less in Python. So a function that is not on disk may
run as Python at first (`python_first`), until the process has spent `MOST_PYTHON_S` in such functions.

A compiled function may be an argument of another one, which is compiled for it anew, as a template is. Numba tells such
arguments apart by names that it draws for them in every process, so that it would find nothing on disk: here a function's
name and stamp are its name for good.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from inspect import CO_VARARGS
from mmap import mmap
from types import FunctionType
from typing import Any, TypeVar, cast

import numpy as np
from numba import config, njit
from numba.core.caching import FunctionCache
from numba.core.dispatcher import Dispatcher, OmittedArg
from numba.core.types import Omitted
from numpy.typing import NDArray

from trainyard.caches import go_without

__all__ = [
    "compile_from_now_on",
    "compiled",
    "compiling_is_said",
    "is_on_disk",
    "lean",
    "only_compiled",
    "only_lean",
    "python_first",
    "records",
]

MOST_PYTHON_S = 10.0
"""CPU time that a process may spend in functions as Python; then it compiles them.

Compiling the simulator takes five times as long, and a simulation of some hundred jobs a small part of it."""

_WHAT = "compiled functions"
_python_s = 0.0
_is_python_first: ContextVar[bool] = ContextVar("_is_python_first", default=False)
_say: ContextVar[Callable[[], None] | None] = ContextVar("_say", default=None)

_Function = TypeVar("_Function", bound=Callable[..., Any])


def compiled(function: _Function, *, may_be_python: bool = True, **options: Any) -> _Function:
    """Compile a function when it is first called; later runs find it on disk.

    Parameters
    ----------
    may_be_python : whether it may run as Python under `python_first`. Its results have to be the same to the last bit.
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
    if may_be_python and isinstance(dispatcher, Dispatcher):
        _PythonFallback(dispatcher)
    return cast(_Function, dispatcher)


def lean(function: _Function, *, may_be_python: bool = True) -> _Function:
    """Compile without reference counts on arrays: for small functions that make none and return none.

    To count who refers to the arrays that a function is given takes longer than what it does.
    """
    return compiled(function, may_be_python=may_be_python, nogil=True, error_model="numpy", _nrt=False)


only_compiled = partial(compiled, may_be_python=False)
"""`compiled`, and never run as Python: for functions that are too slow there, or whose results have other bits there."""
only_lean = partial(lean, may_be_python=False)
"""`lean`, and never run as Python."""


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


@contextmanager
def python_first() -> Iterator[None]:
    """Run functions that are not on disk as Python within the block, for `MOST_PYTHON_S` of the process at most."""
    token = _is_python_first.set(True)
    try:
        yield
    finally:
        _is_python_first.reset(token)


def is_on_disk(function: Callable[..., Any]) -> bool:
    """Return whether a function is compiled and on disk, for arguments of any types."""
    return bool(_kept_forms(function))


def compile_from_now_on() -> None:
    """End `python_first` for this process: compile each function at its first call."""
    global _python_s
    _python_s = MOST_PYTHON_S


class _PythonFallback:
    """Python code of a compiled function, which Numba calls instead of compiling.

    Numba asks for it at a call whose types of arguments are not compiled yet. Other calls are as fast as without it. One
    function in Python calls another directly.
    """

    def __init__(self, dispatcher: Any) -> None:
        self._dispatcher, self._compile = dispatcher, dispatcher._compile_for_args
        self._function: Callable[..., Any] | None = None
        self._on_disk: Mapping[Any, Any] | None = None
        dispatcher.as_python, dispatcher._compile_for_args = self, self._code

    @property
    def function(self) -> Callable[..., Any]:
        """The function in Python. The functions that it calls are in Python, too."""
        if self._function is None:
            of = self._dispatcher.py_func
            names = _python_globals(of.__globals__)
            self._function = FunctionType(of.__code__, names, of.__name__, of.__defaults__, of.__closure__)
        return self._function

    def __call__(self, *args: Any) -> Any:
        global _python_s
        since_s = time.thread_time()
        if self.function.__code__.co_flags & CO_VARARGS:
            args = (*args[:-1], *args[-1])  # Numba gives the values of ``*args`` as one tuple
        try:
            with np.errstate(all="ignore"):  # compiled code does not warn either
                return _each(_to_numba, self.function(*(_each(_to_python, arg) for arg in args)))
        finally:
            _python_s += time.thread_time() - since_s

    def _code(self, *args: Any) -> Any:
        """Return the code that Numba is to call: this, or what it compiles."""
        if _python_s < MOST_PYTHON_S and _is_python_first.get() and not self._is_on_disk(args):
            return self
        return self._compile(*args)

    def _is_on_disk(self, args: tuple[Any, ...]) -> bool:
        if self._on_disk is None:
            self._on_disk = _kept_forms(self._dispatcher)
        if self._on_disk is None:
            return True  # a damaged file, of which Numba's cache tells
        if not self._on_disk:
            return False
        typeof = self._dispatcher.typeof_pyval
        signature = tuple(Omitted(arg.value) if isinstance(arg, OmittedArg) else typeof(arg) for arg in args)
        codegen = self._dispatcher.targetctx.codegen()
        return self._dispatcher._cache._index_key(signature, codegen) in self._on_disk


_globals: dict[int, dict[str, Any]] = {}
"""Results of `_python_globals` by the id of the module's names."""


def _python_globals(names: dict[str, Any]) -> dict[str, Any]:
    """Return a copy of a module's names, in which each compiled function is replaced by its Python code."""
    if (found := _globals.get(id(names))) is None:
        found = _globals[id(names)] = dict(names)  # before the others: modules may refer to each other
        for name, value in names.items():
            if isinstance(python := getattr(value, "as_python", None), _PythonFallback):
                found[name] = python.function
    return found


def _each(change: Callable[[Any], Any], value: Any) -> Any:
    """Return a value after a change; of a tuple, also a nested one, change each part."""
    if not isinstance(value, tuple):
        return change(value)
    parts = [_each(change, part) for part in value]
    return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)


def _to_python(value: Any) -> Any:
    if isinstance(value, np.ndarray) and value.dtype.names is not None:
        return value.view(_FieldsFirst)
    return value.value if isinstance(value, OmittedArg) else value


def _to_numba(value: Any) -> Any:
    if isinstance(value, _FieldsFirst):
        return value.view(np.ndarray)
    return value.item() if isinstance(value, np.generic) and value.dtype.names is None else value


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


def _kept_forms(function: Any) -> Mapping[Any, Any] | None:
    """Read what is on disk of a function, by types of arguments and processor; return None if the file is damaged."""
    index = _index_of(function)
    try:
        return {} if index is None else cast(Mapping[Any, Any], index._load_index())
    except Exception:  # of a damaged file, any
        return None


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
