"""TurboTransformers: of all ways to cut requests into batches, the one that takes least."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations, pairwise

import numpy as np

from trainyard.published import PaperTable, Row
from trainyard.serve.policies.turbotransformers.batching import BatchCost, plan_batches

_NUM_REQUESTS = 12
_MOST = 6
_TOKEN_MS = 0.1
_STEPS_MS = (1.0, 20.0, 1000.0)
"""Milliseconds of a batch beside those of its tokens: little or much of its time."""


def _cost(step_ms: float) -> BatchCost:
    return lambda length, size: 1e-3 * (step_ms + _TOKEN_MS * length * size)


def _seconds(batches: Sequence[Sequence[int]], cost: BatchCost) -> float:
    """Return the seconds of batches, by lengths of their requests."""
    return sum(cost(max(batch), len(batch)) for batch in batches)


def _least_s(lengths: Sequence[int], cost: BatchCost) -> float:
    """Find the least time by trying each way to cut the requests in the order of their lengths."""
    order = sorted(lengths)
    found = []
    for num_cuts in range(len(order)):
        for cuts in combinations(range(1, len(order)), num_cuts):
            batches = [order[start:stop] for start, stop in pairwise((0, *cuts, len(order)))]
            if max(map(len, batches)) <= _MOST:
                found.append(_seconds(batches, cost))
    return min(found)


def _rows() -> Iterator[Row]:
    lengths = np.random.default_rng(0).integers(5, 500, _NUM_REQUESTS).tolist()
    for step_ms in _STEPS_MS:
        cost = _cost(step_ms)
        batches = [[lengths[place] for place in batch] for batch in plan_batches(lengths, cost, _MOST)]
        yield Row(f"{step_ms:g} ms and the tokens", _least_s(lengths, cost), _seconds(batches, cost))


TABLES = (
    PaperTable(
        "Fang et al., PPoPP 2021, Algorithm 3, whose batches take least of all",
        "s of all batches together",
        f"planned; theirs is the least of all ways to cut {_NUM_REQUESTS} requests of 5 to 500 tokens, by trying each; a "
        f"batch of up to {_MOST} takes so many ms, and {_TOKEN_MS} ms for each token of its padded requests",
        _rows,
        tolerance=1e-9,
    ),
)
