"""Batching profiles: how long a batch takes, and which batches keep an objective."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from trainyard.serve.errors import ServeError

__all__ = ["BatchingProfile", "read_batching_profile"]

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class BatchingProfile:
    """Latency by batch size. A batch that was not measured takes as long as the next larger one that was.

    Attributes
    ----------
    batches : that were measured, in ascending order.
    latency_s : of each.
    outside_s : before and after a batch, on the host.
    memory_bytes : of the device, for each of the batches; empty where it is not known.

    Raises
    ------
    ServeError
        If the batches do not ascend from 1 or more, or have more or fewer latencies.
    """

    batches: tuple[int, ...]
    latency_s: tuple[float, ...]
    outside_s: float = 0.0
    memory_bytes: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        ascend = all(a < b for a, b in zip((0, *self.batches), self.batches, strict=False))
        if not self.batches or not ascend or len(self.batches) != len(self.latency_s):
            raise ServeError(
                f"batching profile with batches {self.batches} and {len(self.latency_s)} latencies: "
                "give ascending batches of 1 or more, and a latency for each"
            )

    def latency(self, batch: int) -> float:
        """Seconds of a batch; beyond the largest measured, of that one."""
        at = next((i for i, size in enumerate(self.batches) if size >= batch), -1)
        return self.latency_s[at]

    @cached_property
    def latency_by_size_s(self) -> Floats:
        """Seconds of every batch from none on, shape ``(largest measured + 1,)``."""
        return np.array([0.0, *(self.latency(size) for size in range(1, self.batches[-1] + 1))])

    def within(self, budget_s: float) -> tuple[int, ...]:
        """Batches up to the first that takes longer."""
        slow = next((i for i, s in enumerate(self.latency_s) if s > budget_s), len(self.batches))
        return self.batches[:slow]

    def best_batch(self, budget_s: float) -> tuple[int, float]:
        """The batch with the greatest throughput within a budget, and its requests per second; 0 and 0 if none is."""
        rates = [(b / self.latency(b), b) for b in self.within(budget_s)]
        rate, batch = max(rates, key=lambda r: (r[0], -r[1]), default=(0.0, 0))
        return batch, rate


def read_batching_profile(path: Path, margin: float = 1.15) -> BatchingProfile:
    """Read a profile as Nexus wrote it: microseconds, mean and standard deviation.

    Parameters
    ----------
    margin : factor by which the latency is above the sum of mean and standard deviation.

    Raises
    ------
    ServeError
        If the file has no table of batches.
    """
    batches, latency_s, memory_bytes, outside_s = [], [], [], 0.0
    for line in path.read_text().splitlines():
        fields = line.split(",")
        if len(fields) in (2, 4) and fields[0].replace(".", "", 1).isdigit():
            mean, std = map(float, fields[-2:] if len(fields) == 2 else fields[1:3])
            if len(fields) == 4:
                batches.append(int(fields[0]))
                latency_s.append(margin * (mean + std) * 1e-6)
                memory_bytes.append(float(fields[3]))
            else:
                outside_s += margin * (mean + std) * 1e-6
    if not batches:
        raise ServeError(
            f"{path}: no line 'batch,latency(us),std(us),memory(B)' with numbers; give a Nexus profile"
        )
    return BatchingProfile(tuple(batches), tuple(latency_s), outside_s, tuple(memory_bytes))
