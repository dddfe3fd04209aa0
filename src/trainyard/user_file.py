"""Python files of the user's own, which define models and policies."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any


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
    ValueError
        If there is no such file.
    """
    file = Path(path).resolve()
    if file.suffix != ".py" or not file.is_file():
        raise ValueError(f"{path} is not a Python file; give the path of one: {advice}")
    spec = importlib.util.spec_from_file_location(f"trainyard_user_{file.stem}", file)
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


def named_in_file(
    spec: str, advice: str, is_meant: Callable[[Any], bool], error: type[Exception]
) -> Callable[..., Any]:
    """What ``FILE.py:NAME`` stands for, if it can be called, or else a function that returns it. The file is run.

    Parameters
    ----------
    advice : as of `user_module`.
    is_meant : whether something that the file has, and did not define as a class or a function, may be meant.
    error : what is raised if it does not define the name.

    Raises
    ------
    ValueError
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
