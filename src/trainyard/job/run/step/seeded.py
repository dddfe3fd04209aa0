"""Random numbers of PyTorch, Python and NumPy while data is read: seeded, and apart from those of the process."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trainyard.program.random.dropout_op import stream_key

__all__ = ["RandomState", "keep_random_state", "one_thread", "seed_all"]


@dataclass(frozen=True, eq=False)
class RandomState:
    """State of the three global generators."""

    torch: Tensor
    python: tuple[Any, ...]
    numpy: Any

    @classmethod
    def now(cls) -> RandomState:
        """Return the present state."""
        return cls(torch.get_rng_state(), random.getstate(), np.random.get_state(legacy=True))

    def restore(self) -> None:
        """Make this the present state."""
        torch.set_rng_state(self.torch)
        random.setstate(self.python)
        np.random.set_state(self.numpy)


def seed_all(*key: int) -> None:
    """Seed the global generators by a few integers, such as a seed, an epoch and a row."""
    seed = stream_key(*key)
    # Not `torch.manual_seed`, which seeds GPUs, too: data is made on the CPU.
    torch.default_generator.manual_seed(seed % 2**63)
    random.seed(seed)
    np.random.seed(seed % 2**32)


@contextmanager
def keep_random_state() -> Iterator[None]:
    """Restore the global generators at the end of the context."""
    state = RandomState.now()
    try:
        yield
    finally:
        state.restore()


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute a batch on one thread, so that it is rounded the same in every process."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
