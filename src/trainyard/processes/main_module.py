"""What the main module defines, a script or the cells of a notebook, in other processes.

A new process can run a script again, to define its functions, if the work of the script stands under ``if __name__ ==
"__main__":``. Otherwise it would do that work, too. Then no process runs the script again, and what it defines is sent by
value.
"""

from __future__ import annotations

import ast
import io
import pickle
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from multiprocessing import spawn
from pathlib import Path
from types import ModuleType
from typing import Any

__all__ = ["can_run_again", "pickled", "starting_without_main"]

_MAIN = "__main__"
_INITIALISES_MAIN = ("init_main_from_name", "init_main_from_path")
_this_thread = threading.local()


def can_run_again() -> bool:
    """Return whether another process may run the main module again: it is a script with a main guard."""
    file = getattr(sys.modules[_MAIN], "__file__", None)
    return file is not None and _has_guard(Path(file))


@cache
def _has_guard(script: Path) -> bool:
    try:
        statements = ast.parse(script.read_bytes()).body
    except (OSError, SyntaxError, ValueError):
        return False
    return any(
        isinstance(statement, ast.If)
        and any(isinstance(node, ast.Name) and node.id == "__name__" for node in ast.walk(statement.test))
        for statement in statements
    )


@contextmanager
def starting_without_main() -> Iterator[None]:
    """Within it, processes that this thread starts do not run the main module, unless they may run it again."""
    _this_thread.leaves_main_out = not can_run_again()
    try:
        yield
    finally:
        _this_thread.leaves_main_out = False


_complete_data = spawn.get_preparation_data


def _preparation_data(name: str) -> dict[str, Any]:
    """What multiprocessing tells a new process; it has no option of its own to leave the main module out."""
    data: dict[str, Any] = _complete_data(name)
    if getattr(_this_thread, "leaves_main_out", False):
        for key in _INITIALISES_MAIN:
            data.pop(key, None)
    return data


spawn.get_preparation_data = _preparation_data


class _Pickler(pickle.Pickler):
    """A pickler that notes whether it meets what the main module defines."""

    meets_main = False

    def reducer_override(self, value: Any) -> Any:
        self.meets_main = self.meets_main or getattr(value, "__module__", None) == _MAIN
        return NotImplemented


def pickled(value: Any) -> bytes:
    """Pickle a value for another process; what the main module defines goes by value if it cannot run again.

    Raises
    ------
    TypeError
        If it would have to go by value, and cloudpickle is not installed.
    Exception
        Any error of what cannot be pickled.
    """
    buffer = io.BytesIO()
    pickler = _Pickler(buffer)
    failure: Exception | None = None
    try:
        pickler.dump(value)
    except Exception as error:  # what an object of the user raises when it is pickled can be anything
        failure = error
    if pickler.meets_main and not can_run_again():
        return _by_value().dumps(value)  # type: ignore[no-any-return]
    if failure is not None:
        raise failure
    return buffer.getvalue()


def _by_value() -> ModuleType:
    """cloudpickle, or the copy of it in Ray."""
    try:
        import cloudpickle

        return cloudpickle  # type: ignore[no-any-return]
    except ImportError:
        pass
    try:
        from ray import cloudpickle as cloudpickle_of_ray

        return cloudpickle_of_ray  # type: ignore[no-any-return]
    except ImportError:
        raise TypeError(
            "functions and classes that are defined in the main script, in a notebook or on stdin go to other processes "
            "by value, for which cloudpickle is needed: pip install cloudpickle; or move them into a module of their own "
            'and import them; or put what a script does under `if __name__ == "__main__":`'
        ) from None
