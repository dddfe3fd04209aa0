"""Measured seconds of ops: how repeats are combined, which results are doubtful, and the file that keeps them."""

from __future__ import annotations

import json
import math
import re
from bisect import insort
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import groupby
from pathlib import Path
from statistics import median
from typing import Any

from trainyard.hardware.busy import BUSY
from trainyard.hardware.remembered import damaged, measurements_file, recall, remember

__all__ = [
    "Entry",
    "Failure",
    "Measurement",
    "Measurements",
    "implausible",
    "over_processes",
    "over_repeats",
]

_VERSION = 6
_MOST_S = 3600.0  # more is no op
_MAX_TRIES = 2  # of an op whose seconds are implausible
_MAX_FAILED_RETRIES = 3
_FACTOR_OF_KIND = 4.0  # an op is implausible if it takes so many times as long as larger ops of its kind,
_FACTOR_OF_ANY = 50.0  # or as larger ops of any kind,
_MIN_LARGER = 5  # if there are so many
_OUTLIER = 3.0  # an occurrence counts at most as so many times the median one

Points = tuple[tuple[int, float], ...]
"""Elements of a buffer, and seconds."""


@dataclass(frozen=True)
class Measurement:
    """Measured seconds of one op.

    Attributes
    ----------
    seconds : the least of the repeats.
    spread : how far the median of the repeats is above the least, as a share of the least.
    work : how much the op does, to compare it with other ops; see `trainyard.cost.trace.Instruction`.
    when_s : time of the measurement, in seconds since 1970.
    other_load : share of the cores that other processes used meanwhile.
    num_measured : how often the op was measured.
    num_failed_retries : how often measuring it again failed.
    """

    seconds: float
    spread: float
    work: float
    when_s: float
    other_load: float = 0.0
    num_measured: int = 1
    num_failed_retries: int = 0

    @property
    def is_sound(self) -> bool:
        """True if an op can have these numbers."""
        numbers = (self.seconds, self.spread, self.work, self.when_s, self.other_load)
        sound = all(math.isfinite(n) and n >= 0 for n in numbers)
        return sound and 0.0 < self.seconds < _MOST_S and self.num_measured > 0

    @property
    def was_busy(self) -> bool:
        """True if other work used the cores during the measurement."""
        return self.other_load > BUSY

    def combined_with(self, other: Measurement) -> Measurement:
        """One measurement from two of the same op.

        It has the seconds of the faster one, because whatever disturbs an op makes it slower. It is as new as the newer
        one, and has the other load of the quieter one.
        """
        best = min(self, other, key=lambda m: m.seconds)
        return Measurement(
            best.seconds,
            best.spread,
            best.work,
            max(self.when_s, other.when_s),
            min(self.other_load, other.other_load),
            self.num_measured + other.num_measured,
        )


@dataclass(frozen=True)
class Failure:
    """Why an op could not be measured, and when (in seconds since 1970). It is not tried again.

    Attributes
    ----------
    is_fault : whether it fails in training, too: PyTorch has no such op on operands of these types.
    """

    why: str
    when_s: float
    is_fault: bool = False


@dataclass
class Entry:
    """All that was measured under the same conditions.

    Attributes
    ----------
    ops : measurements, by signature.
    failed : failures, by signature.
    buffer_ops : points (elements, seconds) of each op on a flat buffer.
    buffer_ops_other_load : share of the cores that other processes used while these were measured.
    """

    ops: dict[str, Measurement] = field(default_factory=dict)
    failed: dict[str, Failure] = field(default_factory=dict)
    buffer_ops: dict[str, Points] = field(default_factory=dict)
    buffer_ops_other_load: float = 0.0

    def implausible(self) -> frozenset[str]:
        """Signatures of ops that take far longer than larger ones; see the function `implausible`."""
        return implausible({s: (m.work, m.seconds) for s, m in self.ops.items()})

    def doubtful(self) -> frozenset[str]:
        """Signatures of implausible ops that were measured only once; they are to be measured again."""
        return frozenset(
            s
            for s in self.implausible()
            if self.ops[s].num_measured + self.ops[s].num_failed_retries < _MAX_TRIES
        )

    def busy(self) -> frozenset[str]:
        """Signatures of ops that were measured while other work used the cores."""
        return frozenset(s for s, m in self.ops.items() if m.was_busy)

    def disturbed(self) -> frozenset[str]:
        """Return the ops of `busy` to measure again on a quiet machine; none that failed too often."""
        return frozenset(s for s in self.busy() if self.ops[s].num_failed_retries < _MAX_FAILED_RETRIES)

    def add(self, found: Entry) -> None:
        """Add new measurements and failures; an op takes more than 0 seconds, so one of 0 is none.

        If an op has a measurement and fails now, the measurement stays and counts one more failed retry.
        """
        for signature, failure in found.failed.items():
            old = self.ops.get(signature)
            if old is None:
                self.failed[signature] = failure
            else:
                self.ops[signature] = replace(old, num_failed_retries=old.num_failed_retries + 1)
        for signature, new in found.ops.items():
            if not new.is_sound:
                continue
            old = self.ops.get(signature)
            self.ops[signature] = new if old is None else old.combined_with(new)
            self.failed.pop(signature, None)
        if found.buffer_ops and all(map(_are_sound, found.buffer_ops.values())):
            known = self.buffer_ops or found.buffer_ops
            before = self.buffer_ops_other_load if self.buffer_ops else 1.0
            self.buffer_ops_other_load = min(found.buffer_ops_other_load, before)
            self.buffer_ops = {
                name: tuple(min(a, b) for a, b in zip(known.get(name, points), points, strict=True))
                for name, points in found.buffer_ops.items()
            }


class Measurements:
    """The file of what was measured on this machine, with an `Entry` for each of the conditions."""

    def __init__(self, path: Path, entries: dict[str, Entry]) -> None:
        self.path, self.entries = path, entries

    @classmethod
    def read(cls) -> Measurements:
        """Read the file; without numbers that cannot be, and empty if it is absent, damaged or of another version."""
        path = measurements_file("ops")
        try:
            text = recall(path)
            plain: Any = {"version": None} if text is None else json.loads(text)
            conditions = plain["conditions"] if plain["version"] == _VERSION else {}
            entries = {str(key): _entry(values) for key, values in conditions.items()}
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            damaged(path, error)
            entries = {}
        return cls(path, entries)

    def of(self, key: str) -> Entry:
        """The entry of some conditions, by their key; a new one if the file has none."""
        return self.entries.setdefault(key, Entry())

    def write(self) -> None:
        """Replace the file."""
        conditions = {key: asdict(entry) for key, entry in self.entries.items()}
        remember(self.path, json.dumps({"version": _VERSION, "conditions": conditions}))


def _are_sound(points: Points) -> bool:
    return all(0.0 < seconds < _MOST_S for _, seconds in points)


def _entry(values: Mapping[str, Any]) -> Entry:
    ops = {s: m for s, m in _each(Measurement, values["ops"]) if m.is_sound}
    buffer_ops = {}
    for name, points in values["buffer_ops"].items():
        point_list = tuple((int(n), float(s)) for n, s in points)
        if len(point_list) > 1 and _are_sound(point_list):
            buffer_ops[str(name)] = point_list
    return Entry(
        ops, dict(_each(Failure, values["failed"])), buffer_ops, float(values["buffer_ops_other_load"])
    )


_READERS = {"float": float, "int": int, "str": str, "bool": bool}


def _each(kind: Any, values: Mapping[str, Mapping[str, Any]]) -> Iterable[tuple[str, Any]]:
    """The values that can be read, as objects of a kind, by signature."""
    for signature, fields in values.items():
        try:
            read = {name: _READERS[kind.__annotations__[name]](value) for name, value in fields.items()}
            yield str(signature), kind(**read)
        except (TypeError, ValueError, AttributeError, KeyError):
            continue


def over_repeats(runs: Sequence[Sequence[float]]) -> tuple[float, float]:
    """Seconds and spread of an op that occurs several times in a step.

    The seconds of an occurrence are the least of its repeats. The seconds of the op are their mean over the occurrences,
    because these find the caches in different states. An occurrence that is slow in all repeats was disturbed; it counts
    at most as a few times the median one.

    Parameters
    ----------
    runs : seconds of every occurrence, for every repeat of the step.
    """
    repeats = list(zip(*runs, strict=False))
    least = [min(each) for each in repeats]
    most = _OUTLIER * median(least)
    seconds = sum(min(s, most) for s in least) / len(least)
    typical = sum(min(median(each), most) for each in repeats) / len(repeats)
    return seconds, max(0.0, typical / seconds - 1) if seconds > 0 else 0.0


def over_processes(values: Sequence[float]) -> float:
    """Seconds of an op that several processes run at once: their median, and the lower of two.

    So it counts that processes slow each other, and not that one of them was disturbed all the time.
    """
    return sorted(values)[(len(values) - 1) // 2]


def implausible(points: Mapping[str, tuple[float, float]]) -> frozenset[str]:
    """Signatures of ops that take far longer than larger ones.

    Far longer is several times the median of the larger ops of the same kind (which differ in sizes only), or very many
    times the median of the larger ops of any kind.

    Parameters
    ----------
    points : work and seconds by signature.
    """
    kinds: dict[str, list[tuple[float, float]]] = {}
    for signature, point in points.items():
        kinds.setdefault(_kind(signature), []).append(point)
    everything = sorted(points.values())
    medians = _medians_from(everything)
    found = set()
    for signature, (work, seconds) in points.items():
        larger = [s for w, s in kinds[_kind(signature)] if w > work]
        most_of_kind = _FACTOR_OF_KIND * median(larger) if larger else math.inf
        if seconds > min(most_of_kind, _FACTOR_OF_ANY * medians.get(work, math.inf)):
            found.add(signature)
    return frozenset(found)


def _medians_from(points: Sequence[tuple[float, float]]) -> dict[float, float]:
    """The median seconds of the points with more work, for each work; none where these are few."""
    found: dict[float, float] = {}
    larger: list[float] = []
    for work, same in groupby(reversed(points), key=lambda point: point[0]):
        if len(larger) >= _MIN_LARGER:
            found[work] = larger[len(larger) // 2]
        for _, seconds in same:
            insort(larger, seconds)
    return found


_SIZES = re.compile(r"\[[\d, -]*\]")


def _kind(signature: str) -> str:
    """The kind of an op: its signature without the sizes."""
    return _SIZES.sub("[]", signature)
