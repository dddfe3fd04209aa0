"""The model, data and evaluation of a run, by a name of the zoo or from the user's Python file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from trainyard.job.planning import load_model
from trainyard.job.run.step.data import DataError, FixedData, by_path, example_data
from trainyard.job.run.step.data_source import LazyData, as_data
from trainyard.job.run.step.evaluation import Evaluation
from trainyard.job.run.step.repeatable import repeatable
from trainyard.program.lengths import Lengths
from trainyard.program.model import Model
from trainyard.user_file import is_file
from trainyard.zoo import build
from trainyard.zoo.user import FileFunction, file_function

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
        """Return the tensors of a step by path."""
        return by_path(FileFunction(self.path, "data")(step))


def model_source(spec: str, num_rows: int) -> ModelSource:
    """Return a function that builds the model in any process."""
    if is_file(spec):
        return partial(load_model, str(Path(spec).resolve()))
    return partial(build, spec, num_rows)


def loaded(spec: str, num_rows: int, seed: int) -> Model:
    """Load a model to plan for: one of the zoo takes no memory; one of a file is loaded after the run's seed."""
    found = file_model(spec, seed)
    if found is not None:
        return found
    with torch.device("meta"):
        return build(spec, num_rows)


def file_model(spec: str, seed: int) -> Model | None:
    """Load the model of a Python file after the run's seed, as processes that train do; None if ``spec`` is a name."""
    if not is_file(spec):
        return None
    torch.manual_seed(seed)
    return load_model(spec)


def file_data(spec: str, model: Model | None, num_steps: int, num_rows: int, seed: int) -> Data | None:
    """Return the data of a Python file, which depend on the step alone; None if the file has none.

    Parameters
    ----------
    model : of the file, whose lengths say how rows are filled up; None if ``spec`` is a name.
    num_rows : of a step.
    seed : of the order of rows, where the file does not say it.

    Raises
    ------
    DataError
        If a function returns something else when it is asked again, or the file has several functions of data.
    """
    if model is None:
        return None
    path = str(Path(spec).resolve())
    name = data_function(path)
    if name is None:
        return None
    make = partial(_made, path, name, num_rows, seed, model.lengths)
    data = FileData(path) if name == "data" else LazyData(make)
    return repeatable(data, num_steps)


def file_evaluation(spec: str, every: int) -> Evaluation | None:
    """Return the evaluation, or that on the held-out set, which ``evaluation()`` of a Python file returns; None if the
    file has no such function.

    Raises
    ------
    ValueError
        If it is asked for and there is none.
    """
    path = str(Path(spec).resolve())
    function = file_function(path, "evaluation") if is_file(spec) else None
    if function is not None:
        return Evaluation(function, every)
    if every:
        raise ValueError(
            f"--evaluate-every {every}: {spec} has no function evaluation(); write one in the model's Python file, which "
            "returns a held-out Dataset or DataLoader, or leave the option out"
        )
    return None


def data_function(path: str) -> str | None:
    """Return the name of the function of a Python file that returns its data; None if there is none.

    Raises
    ------
    DataError
        If there are several.
    """
    names = [name for name in DATA_FUNCTIONS if file_function(path, name) is not None]
    if len(names) > 1:
        raise DataError(f"{path} has {' and '.join(names)}; keep one: each returns what is trained on")
    return next(iter(names), None)


def _made(path: str, name: str, num_rows: int, seed: int, lengths: Lengths | None) -> Data:
    """Return the data of the data set or loader that a function of a Python file returns."""
    return as_data(FileFunction(path, name)(), num_rows, seed, lengths)


def data_of(spec: str, num_rows: int, own: Data | None) -> tuple[Data, str]:
    """Return the data to train a model on, and its origin in words.

    A file's ``own``, or its example batch; for a model of the zoo see `example_data`.
    """
    if own is not None:
        name = data_function(str(Path(spec).resolve()))
        return own, f"{DATA_FUNCTIONS[name or 'data']} of {spec}"
    if is_file(spec):
        missing = "no data(step), dataset() or loader()"
        return FixedData(load_model(spec).batch), f"the example batch of {spec}, which has {missing}"
    return example_data(build(spec, num_rows), num_rows)
