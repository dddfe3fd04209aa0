"""Where a run's model and data come from: a name of the zoo, or the user's Python file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from trainyard.job.planning import load_model
from trainyard.job.run.step.data import DataError, FixedData, by_path, example_data
from trainyard.job.run.step.data_source import LazyData, as_data
from trainyard.job.run.step.evaluation import Evaluation
from trainyard.job.run.step.repeatable import repeatable
from trainyard.program.model import Model
from trainyard.user_file import is_file, loaded_file
from trainyard.zoo import build, load_model_file

if TYPE_CHECKING:
    from trainyard.job.run.config import ModelSource
    from trainyard.job.run.step.data import Data

__all__ = [
    "FileData",
    "data_function",
    "data_of",
    "file_data",
    "file_evaluation",
    "file_model",
    "loaded",
    "model_source",
]

DATA_FUNCTIONS = {"data": "data(step)", "dataset": "dataset()", "loader": "loader()"}
"""Functions of a Python file, one of which returns what is trained on."""


@dataclass(frozen=True)
class FileData:
    """Batches from the function ``data(step)`` of a Python file.

    Attributes
    ----------
    path : of the file. Every process loads it for itself, so nothing but the path is sent.
    """

    path: str

    def batch(self, step: int) -> Mapping[str, Tensor]:
        """The tensors of a step by path."""
        function = _function(self.path, "data")
        if function is None:
            raise DataError(f"{self.path} has no function `data(step)`")
        return by_path(function(step))


def _function(path: str, name: str) -> Callable[..., Any] | None:
    """A function of a file; the file is run if it was not yet."""
    if loaded_file(path) is None:
        load_model_file(path)
    found = getattr(loaded_file(path), name, None)
    return found if callable(found) else None


def model_source(spec: str, num_rows: int) -> ModelSource:
    """A function that builds the model in any process."""
    if is_file(spec):
        return partial(load_model, str(Path(spec).resolve()))
    return partial(build, spec, num_rows)


def loaded(spec: str, num_rows: int, seed: int) -> Model:
    """A model to plan for: one of the zoo takes no memory; one of a file is loaded after the run's seed."""
    found = file_model(spec, seed)
    if found is not None:
        return found
    with torch.device("meta"):
        return build(spec, num_rows)


def file_model(spec: str, seed: int) -> Model | None:
    """The model of a Python file, loaded as the processes that train load it, after the run's seed; None of a name."""
    if not is_file(spec):
        return None
    torch.manual_seed(seed)
    return load_model(spec)


def file_data(spec: str, num_steps: int, num_rows: int, seed: int) -> Data | None:
    """The data of a Python file, found to be a function of the step; None if the file has none.

    Parameters
    ----------
    num_rows : of a step.
    seed : of the order of rows, where the file does not say it.

    Raises
    ------
    DataError
        If a function returns something else when it is asked again, or the file has several functions of data.
    """
    if not is_file(spec):
        return None
    path = str(Path(spec).resolve())
    name = data_function(path)
    if name is None:
        return None
    data = FileData(path) if name == "data" else LazyData(partial(_made, path, name, num_rows, seed))
    return repeatable(data, num_steps)


def file_evaluation(spec: str, every: int) -> Evaluation | None:
    """The evaluation that ``evaluation()`` of a Python file returns, or on the held-out set that it returns; None if the
    file has none.

    Raises
    ------
    ValueError
        If it is asked for and there is none.
    """
    path = str(Path(spec).resolve())
    if is_file(spec) and _function(path, "evaluation") is not None:
        return Evaluation(partial(_held_out, path), every)
    if every:
        raise ValueError(
            f"--evaluate-every {every}: {spec} has no function evaluation(); write one in the model's Python file, which "
            "returns a held-out Dataset or DataLoader, or leave the option out"
        )
    return None


def _held_out(path: str) -> Any:
    """What ``evaluation()`` of a Python file returns."""
    function = _function(path, "evaluation")
    if function is None:
        raise DataError(f"{path} has no function `evaluation()`")
    return function()


def data_function(path: str) -> str | None:
    """The name of the function of a Python file that returns its data; None if there is none.

    Raises
    ------
    DataError
        If there are several.
    """
    names = [name for name in DATA_FUNCTIONS if _function(path, name) is not None]
    if len(names) > 1:
        raise DataError(f"{path} has {' and '.join(names)}; keep one: each returns what is trained on")
    return next(iter(names), None)


def _made(path: str, name: str, num_rows: int, seed: int) -> Data:
    """The data that a function of a Python file returns a data set or a loader of."""
    function = _function(path, name)
    if function is None:
        raise DataError(f"{path} has no function `{name}()`")
    return as_data(function(), num_rows, seed)


def data_of(spec: str, num_rows: int, own: Data | None) -> tuple[Data, str]:
    """Data to train a model on, and what it is, in words.

    A file's ``own``, or its example batch; for a model of the zoo see `example_data`.
    """
    if own is not None:
        name = data_function(str(Path(spec).resolve()))
        return own, f"{DATA_FUNCTIONS[name or 'data']} of {spec}"
    if is_file(spec):
        missing = "no data(step), dataset() or loader()"
        return FixedData(load_model(spec).batch), f"the example batch of {spec}, which has {missing}"
    return example_data(build(spec, num_rows), num_rows)
