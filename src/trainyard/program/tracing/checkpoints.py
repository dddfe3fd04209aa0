"""``torch.utils.checkpoint`` in a model: the user's wish that what is inside be computed again, which a plan takes up.

While a step is captured, a checkpointed function runs once, as if it were not checkpointed; the nodes that it makes know
by which call they were made.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch.fx.traceback as fx_traceback
import torch.utils.checkpoint as torch_checkpoint


@contextmanager
def checkpoints_run_once() -> Iterator[None]:
    """Within it, checkpointed functions run once, whoever holds a reference to ``checkpoint``."""
    numbers = itertools.count()

    class Reentrant:
        """Stands for ``CheckpointFunction``."""

        @staticmethod
        def apply(function: Callable[..., Any], preserve_rng_state: bool, *args: Any) -> Any:
            with _region(next(numbers)):
                return function(*args)

    def generator(*_: Any, **__: Any) -> Iterator[None]:
        """Is advanced before the function runs, and afterwards."""
        with _region(next(numbers)):
            yield

    with patch.multiple(
        torch_checkpoint, CheckpointFunction=Reentrant, _checkpoint_without_reentrant_generator=generator
    ):
        yield


@contextmanager
def _region(number: int) -> Iterator[None]:
    """While tracing, every node made within learns the number of the outermost region that it is in."""
    before = fx_traceback.current_meta.get("custom") or {}
    if not fx_traceback.has_preserved_node_meta() or "checkpoint" in before:
        yield
        return
    fx_traceback.current_meta["custom"] = {**before, "checkpoint": number}
    try:
        yield
    finally:
        now = dict(fx_traceback.current_meta.get("custom") or {})
        now.pop("checkpoint", None)
        fx_traceback.current_meta["custom"] = now
