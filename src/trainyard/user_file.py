"""Python files of the user's own, which define models and policies."""

from __future__ import annotations

import importlib.util
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from trainyard.errors import TrainyardError
from trainyard.reading.arguments import WrongValueError

_PREFIX = "trainyard_user_"


class UserFileError(TrainyardError, ValueError):
    """A fault in a user's file that another process met; the message is that of `fault_in_user_file` there."""


def is_file(spec: str) -> bool:
    """Whether a model is given as a Python file, not by a name or as a file of its sizes."""
    return spec.endswith(".py") or ("/" in spec and not is_config(spec))


def is_config(spec: str) -> bool:
    """Whether a model is given as a file of its sizes, which runs no code: `config.json`, or a folder that has one."""
    return spec.endswith(".json") or (Path(spec) / "config.json").is_file()


@contextmanager
def user_module(path: str | Path, advice: str) -> Iterator[ModuleType]:
    """Run a Python file; its folder is importable until the context is left.

    Parameters
    ----------
    advice : what the file must define, for the message where there is none.

    Raises
    ------
    WrongValueError
        If there is no such file.
    """
    file = Path(path).resolve()
    if not file.is_file():
        raise WrongValueError(f"there is no file {path}; give the path of a Python file: {advice}")
    if file.suffix != ".py":
        raise WrongValueError(f"{path} is not a Python file; give the path of one: {advice}")
    spec = importlib.util.spec_from_file_location(f"{_PREFIX}{file.stem}", file)
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = loaded  # dataclasses look their module up
    sys.path.insert(0, str(file.parent))
    try:
        spec.loader.exec_module(loaded)
        yield loaded
    finally:
        sys.path.remove(str(file.parent))


def loaded_file(path: str | Path) -> ModuleType | None:
    """The module of a Python file that `user_module` ran; None if it did not, or ran another of the same name since."""
    found = sys.modules.get(f"{_PREFIX}{Path(path).stem}")
    return found if found is not None and found.__file__ == str(Path(path).resolve()) else None


def named_in_file(
    spec: str, advice: str, is_meant: Callable[[Any], bool], error: type[Exception]
) -> Callable[..., Any]:
    """Return the object of ``FILE.py:NAME``, or a function that returns it if it cannot be called. The file is run.

    Parameters
    ----------
    advice : as of `user_module`.
    is_meant : whether something that the file has, and did not define as a class or a function, may be meant.
    error : what is raised if it does not define the name.

    Raises
    ------
    WrongValueError
        If there is no such file.
    """
    path, _, name = spec.rpartition(":")
    with user_module(path, advice) as loaded:
        found = vars(loaded)
    if name not in found:
        own = [
            other
            for other, thing in found.items()
            if getattr(thing, "__module__", "") == loaded.__name__
            or (is_meant(thing) and not isinstance(thing, type))
        ]
        raise error(f"{path} does not define {name!r}; it defines {', '.join(own) or 'nothing'}")
    thing = found[name]
    return thing if callable(thing) else lambda: thing


def fault_in_user_file(error: BaseException) -> str:
    """Return the message of an error that arose in a user's file, or in what it called; "" for any other.

    Parameters
    ----------
    error : as it was caught; it may have been raised from the one that arose there.

    Returns
    -------
    str
        The innermost place in a file that `user_module` ran, or in one beside it, with the error's type and text:
        ``own.py, line 7, in decide: ZeroDivisionError: division by zero``.
    """
    said = error.msg if isinstance(error, SyntaxError) else str(error)
    if place := _place_in_user_file(error):
        return f"{place}: {type(error).__name__}" + (f": {said}" if said else "")
    cause = error.__cause__
    if cause is not None and (place := _place_in_user_file(cause)):
        return f"{said} ({place}: {type(cause).__name__})"
    return ""


def _place_in_user_file(error: BaseException) -> str:
    folders = {
        Path(loaded.__file__).parent
        for name, loaded in sys.modules.items()
        if name.startswith(_PREFIX) and loaded.__file__ is not None
    }
    places = [
        (frame.filename, frame.lineno, "" if frame.name == "<module>" else f", in {frame.name}")
        for frame in traceback.extract_tb(error.__traceback__)
    ]
    if isinstance(error, SyntaxError) and error.filename is not None:
        places.append((error.filename, error.lineno, ""))
    for file, line, function in reversed(places):
        if any(Path(file).is_relative_to(folder) for folder in folders) and not _is_installed(file):
            return f"{_from_here(Path(file))}, line {line}{function}"
    return ""


def _is_installed(file: str) -> bool:
    """Whether a file is of this package, of an installed one, or of Python; they may lie below a user's folder."""
    paths = sysconfig.get_paths()
    folders = (str(Path(__file__).parent), *(paths[name] for name in ("stdlib", "purelib", "platlib")))
    return any(Path(file).is_relative_to(folder) for folder in folders)


def _from_here(file: Path) -> str:
    """A path as a user in the current folder would type it."""
    here = Path.cwd()
    return str(file.relative_to(here) if file.is_relative_to(here) else file)
