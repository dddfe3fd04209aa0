"""Drawing from tables of shares and of quantiles."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Generic, TypeVar

import numpy as np

Value = TypeVar("Value")


@dataclass(frozen=True)
class Shares(Generic[Value]):
    """Values, each drawn as often as its weight says.

    Attributes
    ----------
    values : what is drawn.
    sums : of the weights up to each.
    """

    values: Sequence[Value]
    sums: Sequence[float]

    @classmethod
    def of(cls, weights: Mapping[Value, float]) -> Shares[Value]:
        return cls(list(weights), list(accumulate(weights.values())))

    def draw(self, rng: np.random.Generator) -> Value:
        return self.values[bisect_right(self.sums, rng.random() * self.sums[-1])]


@dataclass(frozen=True)
class Quantiles:
    """A positive number of which quantiles are known; between them, its logarithm is uniform.

    Attributes
    ----------
    parts : ascending from 0 to 1.
    logs : logarithm of the quantile at each.
    """

    parts: Sequence[float]
    logs: Sequence[float]

    @classmethod
    def of(cls, parts: Sequence[float], values: Sequence[float]) -> Quantiles:
        return cls(parts, [math.log(value) for value in values])

    def draw(self, rng: np.random.Generator) -> float:
        part = rng.random()
        upper = bisect_right(self.parts, part)
        low, high = self.parts[upper - 1], self.parts[upper]
        start, end = self.logs[upper - 1], self.logs[upper]
        return math.exp(start + (end - start) * (part - low) / (high - low))


def arrivals_s(rng: np.random.Generator, mean_gap_s: float, hours: Sequence[float]) -> Iterator[float]:
    """A Poisson process whose rate follows the hour of the day, from midnight on.

    Parameters
    ----------
    mean_gap_s : from one arrival to the next, over whole days.
    hours : relative rate in every hour of the day.
    """
    mean = sum(hours) / len(hours)
    rates = [hour / mean / mean_gap_s for hour in hours]
    now_s = 0.0
    while True:
        # The integral of the rate from one arrival to the next is exponential.
        needed = rng.exponential()
        while needed > (rest := rates[int(now_s // 3600) % len(rates)] * (3600 - now_s % 3600)):
            needed -= rest
            now_s = (now_s // 3600 + 1) * 3600
        now_s += needed / rates[int(now_s // 3600) % len(rates)]
        yield now_s
