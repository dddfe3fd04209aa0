"""Text that every machine has: the source of Python's standard library, as bytes."""

from __future__ import annotations

import os
import sysconfig
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trainyard.program.random.dropout_op import stream_key
from trainyard.reading import count_text
from trainyard.reading.arguments import WrongValueError

_LEFT_OUT = frozenset({"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"})


@lru_cache(maxsize=1)
def standard_library() -> np.ndarray[Any, np.dtype[np.uint8]]:
    """All ``.py`` files of this Python's standard library but its tests, in order of their paths; read-only.

    Returns
    -------
    array
        uint8, about ten million; the same for the same Python version.

    Raises
    ------
    FileNotFoundError
        If this Python came without its source.
    """
    root = Path(sysconfig.get_paths()["stdlib"])
    files = []
    for folder, inner, names in os.walk(root):
        inner[:] = set(inner) - _LEFT_OUT  # what is left out is not walked through either
        files += [Path(folder, name) for name in names if name.endswith(".py")]
    if not files:
        raise FileNotFoundError(f"no Python source under {root}; give TextBatches tokens of your own")
    files.sort(key=lambda p: p.relative_to(root).as_posix())
    tokens = np.frombuffer(b"".join(p.read_bytes() for p in files), np.uint8)
    tokens.setflags(write=False)
    return tokens


@dataclass(frozen=True, eq=False)
class TextBatches:
    """Batches of pieces of a text, each a pure function of the seed, the step and the row.

    Attributes
    ----------
    tokens : the text, any integer type, at least ``context + 1`` long.
    rows : rows of a whole batch.
    context : tokens per row.
    seed : other seeds draw other pieces.
    """

    tokens: np.ndarray[Any, Any]
    rows: int
    context: int
    seed: int = 0

    def __post_init__(self) -> None:
        if len(self.tokens) <= self.context:
            raise WrongValueError(
                f"a text of {count_text(len(self.tokens), 'token')} has no piece of context + 1 = {self.context + 1}; "
                "give a longer text or a shorter context"
            )

    def batch(self, step: int, first_row: int = 0, num_rows: int | None = None) -> dict[str, Tensor]:
        """Rows ``first_row`` to ``first_row + num_rows - 1`` (by default to the last) of a step's batch.

        Returns
        -------
        dict
            ``tokens`` and ``targets`` (the next tokens), int64 [num_rows, context].

        Raises
        ------
        WrongValueError
            If the batch has no such rows.
        """
        count = self.rows - first_row if num_rows is None else num_rows
        if not 0 <= first_row <= first_row + count <= self.rows:
            raise WrongValueError(
                f"rows {first_row} to {first_row + count - 1} of a batch of {count_text(self.rows, 'row')}"
            )
        choices = len(self.tokens) - self.context
        starts = [stream_key(self.seed, step, first_row + i) % choices for i in range(count)]
        positions = np.asarray(starts, np.int64)[:, None] + np.arange(self.context + 1)
        pieces = torch.from_numpy(self.tokens[positions].astype(np.int64))
        return {"tokens": pieces[:, :-1].contiguous(), "targets": pieces[:, 1:].contiguous()}
