"""Where a run's model and data come from: a name of the zoo, or the user's Python file."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from trainyard.job.planning import load_model
from trainyard.job.run.data import DataError, FixedData, by_path, example_data
from trainyard.zoo import build, load_model_file

if TYPE_CHECKING:
    from trainyard.job.run.config import ModelSource
    from trainyard.job.run.data import Data

__all__ = ["FileData", "data_of", "is_file", "model_source"]


def is_file(spec: str) -> bool:
    """Whether a model is given as a Python file."""
    return spec.endswith(".py") or "/" in spec


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
        function = _function(self.path)
        if function is None:
            raise DataError(f"{self.path} has no function `data(step)`")
        return by_path(function(step))


def _function(path: str) -> Callable[[int], Any] | None:
    """The file's ``data``; the file is run if it was not yet."""
    name = f"trainyard_user_{Path(path).stem}"
    if name not in sys.modules:
        load_model_file(path)
    found = getattr(sys.modules[name], "data", None)
    return found if callable(found) else None


def model_source(spec: str, num_rows: int) -> ModelSource:
    """A function that builds the model in any process."""
    if is_file(spec):
        return partial(load_model, str(Path(spec).resolve()))
    return partial(build, spec, num_rows)


def data_of(spec: str, num_rows: int) -> tuple[Data, str]:
    """Data to train a model on, and what it is, in words.

    A file's own ``data(step)``, or its example batch; for a model of the zoo see `example_data`.
    """
    if is_file(spec):
        path = str(Path(spec).resolve())
        if _function(path) is not None:
            return FileData(path), f"data(step) of {spec}"
        return FixedData(load_model(spec).batch), f"the example batch of {spec}, which has no data(step)"
    return example_data(build(spec, num_rows), num_rows)
