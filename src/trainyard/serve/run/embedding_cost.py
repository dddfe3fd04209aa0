"""How long batches of texts take that are padded to the longest, measured on this machine."""

from __future__ import annotations

import time
from dataclasses import dataclass
from itertools import product

import numpy as np
from scipy.optimize import nnls

from trainyard.serve.run.embedding_model import EmbeddingModel

__all__ = ["PaddedBatchCost", "measured_batch_cost"]

_LENGTHS, _SIZES = (8, 32, 128, 512), (1, 4, 16)
_MOST_S = 3.0
_REPEATS = 2  # of each batch; the faster one counts


@dataclass(frozen=True)
class PaddedBatchCost:
    """Seconds of a batch, linear in its tokens and in the pairs of them that attend to each other.

    Attributes
    ----------
    batch_s : for each batch.
    token_s : for each token, those of the padding with them.
    pair_s : for each pair of tokens of a text.
    """

    batch_s: float
    token_s: float
    pair_s: float = 0.0

    def __call__(self, length: int, num_requests: int) -> float:
        """Seconds of a batch.

        Parameters
        ----------
        length : in tokens, to which it is padded.
        num_requests : in the batch.
        """
        tokens = length * num_requests
        return self.batch_s + self.token_s * tokens + self.pair_s * tokens * length


def measured_batch_cost(model: EmbeddingModel) -> PaddedBatchCost:
    """Measure batches for about three seconds, from the smallest on, and fit them by their relative errors."""
    model.embed([[0]])  # what is done only once
    lengths = sorted({min(length, model.context) for length in _LENGTHS})
    counts, seconds, began_s = [], [], time.perf_counter()
    for length, size in sorted(product(lengths, _SIZES), key=lambda each: each[0] * each[1]):
        took_s = min(_measured_s(model, length, size) for _ in range(_REPEATS))
        counts.append((1.0, length * size, length * size * length))
        seconds.append(took_s)
        if time.perf_counter() - began_s > _MOST_S and len(seconds) >= len(counts[0]):
            break
    fitted, _ = nnls(np.array(counts) / np.array(seconds)[:, None], np.ones(len(seconds)))
    return PaddedBatchCost(*map(float, fitted))


def _measured_s(model: EmbeddingModel, length: int, size: int) -> float:
    start_s = time.perf_counter()
    model.embed([[0] * length] * size)
    return time.perf_counter() - start_s
