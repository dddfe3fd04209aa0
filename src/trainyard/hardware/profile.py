"""Raw measurements of one machine, and the curves read off them."""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from math import exp, log
from typing import Any, TypeVar

from trainyard.hardware.errors import HardwareError, unknown_name
from trainyard.reading import ReadingError, Section, parse_json
from trainyard.reading.limits import MOST_DEVICES

__all__ = ["CollectiveSample", "MachineProfile", "MatmulSample", "MemorySample"]

PROFILE_VERSION = 2


@dataclass(frozen=True)
class MatmulSample:
    """Seconds of one square matrix product of `flops` on `num_threads` threads."""

    dtype: str
    num_threads: int
    flops: float
    seconds: float


@dataclass(frozen=True)
class MemorySample:
    """Seconds to read and write `num_bytes` in total on `num_threads` threads."""

    num_threads: int
    num_bytes: float
    seconds: float


@dataclass(frozen=True)
class CollectiveSample:
    """Seconds of one collective of `num_bytes` (as `collective_cost` counts them) between processes."""

    kind: str
    num_processes: int
    num_bytes: float
    seconds: float


@dataclass(frozen=True)
class MachineProfile:
    """What was measured on a machine.

    Parameters
    ----------
    cpu
        Model of the processor.
    num_cores
        Physical cores that this process may use; local devices share them.
    memory_bytes
        Main memory, or the limit on it.
    torch_version
        Version of PyTorch that was measured.
    op_s
        Overhead of one small operation, in seconds.
    matmul, memory, collectives
        Samples.
    when_s
        Since 1970; 0 if that is not known.
    others
        The share of the cores that other processes used meanwhile.
    """

    cpu: str
    num_cores: int
    memory_bytes: int
    torch_version: str
    op_s: float
    matmul: tuple[MatmulSample, ...]
    memory: tuple[MemorySample, ...]
    collectives: tuple[CollectiveSample, ...]
    when_s: float = 0.0
    others: float = 0.0

    def to_json(self) -> str:
        """The profile as JSON; `from_json` reads it back."""
        return json.dumps(self.to_dict(), indent=1)

    def to_dict(self) -> dict[str, Any]:
        """Plain form: numbers, strings, lists and mappings."""
        return {"version": PROFILE_VERSION, **asdict(self)}

    @classmethod
    def from_json(cls, text: str) -> MachineProfile:
        """Read a profile.

        Parameters
        ----------
        text
            What `to_json` wrote.

        Returns
        -------
        MachineProfile
            The profile.

        Raises
        ------
        HardwareError
            If it is not one, or of another version.
        """
        try:
            plain = Section.of(parse_json(text, "a machine profile"), "a machine profile")
        except ReadingError as error:
            raise HardwareError(f"{error}; measure again") from error
        return cls.from_dict(plain)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> MachineProfile:
        """Read the plain form; raises `HardwareError` like `from_json`."""
        try:
            given = Section.of(values, "a machine profile")
            given.refuse_unknown(("version", *_FIELDS))
            given.whole("version", PROFILE_VERSION, PROFILE_VERSION)
            return cls(
                cpu=given.text("cpu"),
                num_cores=given.whole("num_cores", 1, MOST_DEVICES),
                memory_bytes=int(given.positive("memory_bytes")),
                torch_version=given.text("torch_version"),
                op_s=given.positive("op_s"),
                matmul=_samples(given, "matmul", MatmulSample),
                memory=_samples(given, "memory", MemorySample),
                collectives=_samples(given, "collectives", CollectiveSample),
                when_s=given.number("when_s", 0.0, default=0.0),
                others=given.number("others", default=0.0),
            )
        except ReadingError as error:
            raise HardwareError(f"a machine profile cannot be read: {error}; measure again") from error

    def _threads_measured(self, num_threads: int) -> int:
        measured = sorted({sample.num_threads for sample in self.memory})
        return max((count for count in measured if count <= num_threads), default=measured[0])

    def matmul_flops_per_s(self, dtype: str, num_threads: int) -> float:
        """Fastest rate of a matrix product that was measured.

        Parameters
        ----------
        dtype
            A measured dtype.
        num_threads
            Threads; the next smaller measured number is used.

        Returns
        -------
        float
            Flops per second.

        Raises
        ------
        HardwareError
            If the dtype was not measured.
        """
        return max(sample.flops / sample.seconds for sample in self._matmul_samples(dtype, num_threads))

    def half_matmul_flops(self, dtype: str, num_threads: int) -> float:
        """Flops at which a product reaches half of `matmul_flops_per_s`: the median over sizes of what "
        "fits."""
        peak = self.matmul_flops_per_s(dtype, num_threads)
        excess = sorted(
            max(0.0, peak * sample.seconds - sample.flops)
            for sample in self._matmul_samples(dtype, num_threads)
        )
        return excess[len(excess) // 2]

    def _matmul_samples(self, dtype: str, num_threads: int) -> list[MatmulSample]:
        threads = self._threads_measured(num_threads)
        samples = [s for s in self.matmul if s.dtype == dtype and s.num_threads == threads]
        if not samples:
            raise unknown_name(
                "measured dtype", dtype, {s.dtype for s in self.matmul}, "measure again with it"
            )
        return samples

    def memory_bandwidth_bytes_per_s(self, num_threads: int) -> float:
        """Fastest stream through memory that was measured, reads and writes together."""
        threads = self._threads_measured(num_threads)
        return max(s.num_bytes / s.seconds for s in self.memory if s.num_threads == threads)

    @cached_property
    def _curves(self) -> dict[str, dict[int, list[tuple[float, float]]]]:
        curves: dict[str, dict[int, list[tuple[float, float]]]] = {}
        for sample in self.collectives:
            points = curves.setdefault(sample.kind, {}).setdefault(sample.num_processes, [])
            points.append((sample.num_bytes, sample.seconds))
        return {
            kind: {count: _smoothed(sorted(points)) for count, points in sorted(by_count.items())}
            for kind, by_count in curves.items()
        }

    def collective_s(self, kind: str, num_processes: int, num_bytes: float) -> float:
        """Seconds of a collective between processes of this machine, from the measured curves.

        Between sizes the curve is interpolated on logarithmic axes; below the smallest it is flat (latency),
        above the largest it is proportional to the bytes. Between numbers of processes it is linear; beyond
        the largest it grows with the number of peers, because all traffic crosses one memory.

        Parameters
        ----------
        kind
            A measured kind.
        num_processes
            Processes that take part; one needs no time.
        num_bytes
            As `collective_cost` counts them.

        Returns
        -------
        float
            Seconds.

        Raises
        ------
        HardwareError
            If the kind was not measured.
        """
        if kind not in self._curves:
            raise unknown_name("measured collective", kind, self._curves, "measure again with it")
        if num_processes <= 1 or num_bytes <= 0:
            return 0.0
        by_count = self._curves[kind]
        counts = list(by_count)
        if kind == "send" or num_processes <= counts[0]:
            return _on_curve(by_count[counts[0]], num_bytes)
        if num_processes >= counts[-1]:
            return _on_curve(by_count[counts[-1]], num_bytes) * (num_processes - 1) / (counts[-1] - 1)
        upper = bisect_left(counts, num_processes)
        low, high = counts[upper - 1], counts[upper]
        share = (num_processes - low) / (high - low)
        below, above = _on_curve(by_count[low], num_bytes), _on_curve(by_count[high], num_bytes)
        return below + share * (above - below)


_FIELDS = tuple(each.name for each in fields(MachineProfile))
_Sample = TypeVar("_Sample", MatmulSample, MemorySample, CollectiveSample)


def _samples(given: Section, key: str, kind: type[_Sample]) -> tuple[_Sample, ...]:
    """Samples of one kind, whose fields are texts, counts and quantities."""
    known = {each.name: each.type for each in fields(kind)}
    found = []
    for entry in given.sections(key):
        entry.refuse_unknown(known)
        values: dict[str, Any] = {
            name: entry.text(name)
            if each == "str"
            else entry.whole(name, 1, MOST_DEVICES)
            if each == "int"
            else entry.positive(name)
            for name, each in known.items()
        }
        found.append(kind(**values))
    return tuple(found)


def _smoothed(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """A smaller message cannot take longer than a larger one: where it did, something else was running."""
    fastest = float("inf")
    curve = []
    for size, seconds in reversed(points):
        fastest = min(fastest, seconds)
        curve.append((size, fastest))
    return curve[::-1]


def _on_curve(points: list[tuple[float, float]], num_bytes: float) -> float:
    """Seconds at a size on one measured curve of (bytes, seconds), sorted by bytes."""
    sizes = [size for size, _ in points]
    if num_bytes <= sizes[0]:
        return points[0][1]
    if num_bytes >= sizes[-1]:
        return points[-1][1] * num_bytes / sizes[-1]
    upper = bisect_left(sizes, num_bytes)
    (small, fast), (large, slow) = points[upper - 1], points[upper]
    share = log(num_bytes / small) / log(large / small)
    return exp(log(fast) + share * (log(slow) - log(fast)))
