"""Models and tasks that many tests plan for: what is captured of them is captured once."""

from __future__ import annotations

from functools import cache

from trainyard.job.task import Task
from trainyard.program.model import Model
from trainyard.zoo import build


@cache
def tiny(name: str, num_rows: int | None = None) -> Model:
    """The small model of the zoo that is called so, such as ``gpt``."""
    return build(f"{name}-tiny", num_rows)


@cache
def task_of(model: Model, dtype: str = "float32") -> Task:
    return Task(model, dtype)
