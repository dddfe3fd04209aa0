"""Jobs of the own form that say what they train, instead of how long they take; their speed is predicted by level 1."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

from trainyard.fleet.workload.job import Profile
from trainyard.fleet.workload.level1 import ask
from trainyard.fleet.workload.paths import absolute_path
from trainyard.fleet.workload.training import Training, is_own_file
from trainyard.fleet.workload.training_job import Predicted
from trainyard.reading.defaults import changed_fields
from trainyard.reading.limits import MOST_ROWS, MOST_STEPS
from trainyard.reading.rows import Row

OPTIONS = ("strategies", "learning_rate", "seed", "checkpoint_every")
"""Columns that only such jobs have, beside ``steps``; they are fields of `Training`, and so are their defaults."""


def read_training(row: Row, num_devices: int) -> tuple[float, Profile]:
    """Return work and profile of a job that has ``steps``. The row has no empty fields.

    Model and strategies are not looked up, see `check_names`.

    Raises
    ------
    FleetError
        If a field has no allowed value; the message says where.
    """
    given = row.fields
    if "model" not in given:
        raise row.error("model", "the name of a model of the zoo, or a Python file")
    if "batch_size" not in given:
        raise row.error("batch_size", "the number of rows of a step")
    rest: dict[str, Any] = {"seed": row.count("seed")} if "seed" in given else {}
    if "checkpoint_every" in given:
        rest["checkpoint_every"] = row.count("checkpoint_every", 0, MOST_STEPS)
    if "learning_rate" in given:
        rest["learning_rate"] = row.number("learning_rate")
    if "strategies" in given:
        rest["strategies"] = given["strategies"]
    num_rows, steps = row.count("batch_size", 1, MOST_ROWS), row.count("steps", 1, MOST_STEPS)
    training = Training(model_of(row), num_rows, steps, **rest)
    if training.rows % num_devices:
        raise row.error(
            "num_devices", f"one over which a batch of {training.rows} rows divides: {training.sizes_text}"
        )
    return float(training.steps), Predicted(training)


def check_names(row: Row, own_files: bool) -> None:
    """Check that the model and the strategies of a job exist; this loads PyTorch, which takes seconds.

    Parameters
    ----------
    own_files : whether a Python file that the job names as its model is run.

    Raises
    ------
    FleetError
        If one does not exist; the message says where.
    """
    given = row.fields
    strategies = given.get("strategies") or Training.strategies
    if is_own_file(path := model_of(row)):
        if not own_files:
            raise row.error(
                "model",
                "a model of the zoo, where jobs are only read: to know a Python file is to run it, which `fleet run` "
                "does, and `fleet simulate --own-files` (in Python `read_jobs(own_files=True)`)",
            )
        with suppress(OSError):
            changed_ns = Path(path).stat().st_mtime_ns
            told = given.get("learning_rate", "")
            if problem := ask("file_problem", path, row.count("batch_size"), strategies, told, changed_ns):
                raise row.error(*problem)
            return
        raise row.error("model", f"a Python file that is there; there is no {path}")
    if problem := ask("name_problem", given["model"], strategies):
        raise row.error(*problem)


def model_of(row: Row) -> str:
    """Return the model of a job; of a Python file its absolute path, see `absolute_path`.

    Raises
    ------
    FleetError
        If it is a relative path, and the job comes in no file.
    """
    model = row.fields["model"]
    return absolute_path(row, "model", model) if is_own_file(model) else model


def training_fields(training: Training) -> dict[str, Any]:
    """Return the fields of a row that describe the training, beside ``model`` and ``batch_size``, without defaults."""
    return {"steps": training.steps} | changed_fields(training, OPTIONS)


def refuse_options(row: Row) -> None:
    """Check that a job that is no training has no columns that say how to train.

    Raises
    ------
    FleetError
        If it has one.
    """
    allowed = "nothing beside a command" if "command" in row.fields else "nothing where no steps are given"
    for name in OPTIONS:
        if name in row.fields:
            raise row.error(name, allowed)
