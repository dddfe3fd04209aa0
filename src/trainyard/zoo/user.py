"""A model of the user's own, from a Python file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import nn

from trainyard.program.model import Model
from trainyard.reading.arguments import WrongValueError
from trainyard.user_file import loaded_file, user_module

_ADVICE = "it must define `def model():` that returns a trainyard Model or a tuple (module, loss, batch)"


def load_model_file(path: str | Path) -> Model:
    """Run a Python file and call its function ``model``.

    Parameters
    ----------
    path : of the file; its folder is importable while it runs. A tuple's model is named after the file, and the
        entries of its batch that are not cut into rows are those of the file's ``whole``, if it has one. The file's
        ``lengths``, if there are any, are those of the model.

    Raises
    ------
    WrongValueError
        If there is no such file, it has no function ``model``, or that returns something else.
    """
    with user_module(path, _ADVICE) as loaded:
        function = getattr(loaded, "model", None)
        if not callable(function):
            raise WrongValueError(f"{path} has no function `model`; {_ADVICE}")
        result, whole = function(), getattr(loaded, "whole", ())
        lengths = getattr(loaded, "lengths", None)
    if isinstance(result, Model):
        return replace(result, whole=whole or result.whole, lengths=lengths or result.lengths)
    if isinstance(result, tuple) and len(result) == 3:
        module, loss, batch = result
        if isinstance(module, nn.Module) and callable(loss):
            return Model(Path(path).stem, module, loss, batch, whole, lengths)
    described = type(result).__name__
    if isinstance(result, tuple):
        described = f"({', '.join(type(r).__name__ for r in result)})"
    raise WrongValueError(f"`model` of {path} returned {described}; {_ADVICE}")


@dataclass(frozen=True)
class FileFunction:
    """A function of a Python file that defines a model.

    Attributes
    ----------
    path : of the file. Every process loads it for itself, so nothing but the path is sent.
    name : of the function.
    """

    path: str
    name: str

    def __call__(self, *arguments: Any) -> Any:
        """Call the function.

        Raises
        ------
        WrongValueError
            If the file has no such function.
        """
        function = _function(self.path, self.name)
        if function is None:
            raise WrongValueError(f"{self.path} has no function `{self.name}`")
        return function(*arguments)

    @property
    def __name__(self) -> str:
        return self.name


def file_function(path: str, name: str) -> FileFunction | None:
    """Return a function of a Python file; None if the file has none of that name. The file is run if it was not yet."""
    return None if _function(path, name) is None else FileFunction(path, name)


def _function(path: str, name: str) -> Callable[..., Any] | None:
    if loaded_file(path) is None:
        load_model_file(path)
    function = getattr(loaded_file(path), name, None)
    return function if callable(function) else None
