"""A model of the user's own, from a Python file."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

from torch import nn

from trainyard.program.model import Model

_ADVICE = "it must define `def model():` that returns a trainyard Model or a tuple (module, loss, batch)"


def load_model_file(path: str | Path) -> Model:
    """Run a Python file and call its function ``model``.

    Parameters
    ----------
    path : of the file; its folder is importable while it runs. A tuple's model is named after the file.

    Raises
    ------
    ValueError
        If there is no such file, it has no function ``model``, or that returns something else.
    """
    file = Path(path).resolve()
    if file.suffix != ".py" or not file.is_file():
        raise ValueError(f"{path} is not a Python file; give the path of one: {_ADVICE}")
    spec = importlib.util.spec_from_file_location(f"trainyard_user_{file.stem}", file)
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = loaded  # dataclasses look their module up
    sys.path.insert(0, str(file.parent))
    try:
        spec.loader.exec_module(loaded)
        function = getattr(loaded, "model", None)
        if not callable(function):
            raise ValueError(f"{path} has no function `model`; {_ADVICE}")
        result = function()
    finally:
        sys.path.remove(str(file.parent))
    if isinstance(result, Model):
        return result
    if isinstance(result, tuple) and len(result) == 3:
        module, loss, batch = result
        if isinstance(module, nn.Module) and callable(loss):
            return Model(file.stem, module, loss, batch)
    described = type(result).__name__
    if isinstance(result, tuple):
        described = f"({', '.join(type(r).__name__ for r in result)})"
    raise ValueError(f"`model` of {path} returned {described}; {_ADVICE}")
