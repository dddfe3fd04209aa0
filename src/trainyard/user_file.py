"""Python files of the user's own, which define models and policies."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType


def is_file(spec: str) -> bool:
    """Whether a model is given as a Python file, not by a name."""
    return spec.endswith(".py") or "/" in spec


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
