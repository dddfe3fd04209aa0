"""Measured seconds as they are remembered: what repeats say, whether to believe it, and the file it is in."""

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
    "contradicting",
    "over_processes",
    "over_repeats",
]

_VERSION = 4
_MOST_S = 3600.0
_ENOUGH_TIMES = 2
_MOST_IN_VAIN = 3
# How many times as long as larger ones an op may take: of its own kind, and of any.
_FACTOR_OF_KIND = 4.0
_FACTOR_OF_ANY = 50.0
_MIN_OTHERS = 5
_OUTLIER = 3.0

Points = tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class Measurement:
    """Seconds of one op.

    Attributes
    ----------
    seconds : the least of the repeats.
    spread : how far their median is above that, as a share of it.
    work : of the op, to compare it with others; see `trainyard.cost.trace.Instruction`.
    when_s : since 1970.
    others : the share of the cores that other processes used meanwhile.
    times : how often it was measured.
    in_vain : how often it failed to be measured again since.
    """

    seconds: float
    spread: float
    work: float
    when_s: float
    others: float = 0.0
    times: int = 1
    in_vain: int = 0

    @property
    def is_sound(self) -> bool:
        """Whether the numbers can be those of an op."""
        numbers = (self.seconds, self.spread, self.work, self.when_s, self.others)
        return all(math.isfinite(n) and n >= 0 for n in numbers) and self.seconds < _MOST_S and self.times > 0

    @property
    def was_busy(self) -> bool:
        """Whether other work had the cores."""
        return self.others > BUSY

    def with_another(self, other: Measurement) -> Measurement:
        """The quicker of two: whatever disturbs an op makes it slower. As quiet as the quieter, as new as the newer."""
        best = min(self, other, key=lambda m: m.seconds)
        return Measurement(
            best.seconds,
            best.spread,
            best.work,
            max(self.when_s, other.when_s),
            min(self.others, other.others),
            self.times + other.times,
        )


@dataclass(frozen=True)
class Failure:
    """An op that could not be measured, and is not tried again."""

    why: str
    when_s: float


@dataclass
class Entry:
    """All that was measured under the same conditions.

    Attributes
    ----------
    ops, failed : by signature.
    passes : points (elements, seconds) of each pass over a flat buffer.
    passes_others : the share of the cores that other processes used meanwhile.
    """

    ops: dict[str, Measurement] = field(default_factory=dict)
    failed: dict[str, Failure] = field(default_factory=dict)
    passes: dict[str, Points] = field(default_factory=dict)
    passes_others: float = 0.0

    def contradicting(self) -> frozenset[str]:
        """Signatures of ops that take far longer than larger ones."""
        return contradicting({s: (m.work, m.seconds) for s, m in self.ops.items()})

    def doubtful(self) -> frozenset[str]:
        """Signatures to measure again: those that contradict others, if they were measured only once."""
        return frozenset(
            s for s in self.contradicting() if self.ops[s].times + self.ops[s].in_vain < _ENOUGH_TIMES
        )

    def busy(self) -> frozenset[str]:
        """Signatures that were measured while other work had the cores."""
        return frozenset(s for s, m in self.ops.items() if m.was_busy)

    def disturbed(self) -> frozenset[str]:
        """Those of them to measure again on a quiet machine, unless that was in vain too often."""
        return frozenset(s for s in self.busy() if self.ops[s].in_vain < _MOST_IN_VAIN)

    def add(self, found: Entry) -> None:
        """Take what was measured now, or failed; what had been measured before and failed now counts as tried again."""
        for signature, failure in found.failed.items():
            old = self.ops.get(signature)
            if old is None:
                self.failed[signature] = failure
            else:
                self.ops[signature] = replace(old, in_vain=old.in_vain + 1)
        for signature, new in found.ops.items():
            old = self.ops.get(signature)
            self.ops[signature] = new if old is None else old.with_another(new)
            self.failed.pop(signature, None)
        if found.passes:
            known = self.passes or found.passes
            self.passes_others = min(found.passes_others, self.passes_others if self.passes else 1.0)
            self.passes = {
                name: tuple(min(a, b) for a, b in zip(known.get(name, points), points, strict=True))
                for name, points in found.passes.items()
            }


class Measurements:
    """What is remembered of this machine: a file, with an `Entry` for each of the conditions."""

    def __init__(self, path: Path, entries: dict[str, Entry]) -> None:
        self.path, self.entries = path, entries

    @classmethod
    def read(cls) -> Measurements:
        """What the file holds that can be believed; nothing if it is absent, damaged or of another version."""
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
        """Under these conditions."""
        return self.entries.setdefault(key, Entry())

    def write(self) -> None:
        """Replace the file."""
        conditions = {key: asdict(entry) for key, entry in self.entries.items()}
        remember(self.path, json.dumps({"version": _VERSION, "conditions": conditions}))


def _entry(values: Mapping[str, Any]) -> Entry:
    ops = {s: m for s, m in _each(Measurement, values["ops"]) if m.is_sound}
    passes = {}
    for name, points in values["passes"].items():
        point_list = tuple((int(n), float(s)) for n, s in points)
        if len(point_list) > 1 and all(0 <= s < _MOST_S for _, s in point_list):
            passes[str(name)] = point_list
    return Entry(ops, dict(_each(Failure, values["failed"])), passes, float(values["passes_others"]))


_READERS = {"float": float, "int": int, "str": str}


def _each(kind: Any, values: Mapping[str, Mapping[str, Any]]) -> Iterable[tuple[str, Any]]:
    """What can be read of them."""
    for signature, fields in values.items():
        try:
            read = {name: _READERS[kind.__annotations__[name]](value) for name, value in fields.items()}
            yield str(signature), kind(**read)
        except (TypeError, ValueError, AttributeError, KeyError):
            continue


def over_repeats(runs: Sequence[Sequence[float]]) -> tuple[float, float]:
    """Seconds and spread of an op of which a step has several occurrences.

    Seconds are the least of the repeats of each occurrence, averaged over the occurrences, which find the caches in
    other states. One that is far above the others in all of its repeats was disturbed, and counts as far as the
    others let it.

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
    """Seconds of an op that several processes run at once: the median, the lower one of two.

    A process that was disturbed all the time does not count; that they slow each other does.
    """
    return sorted(values)[(len(values) - 1) // 2]


def contradicting(points: Mapping[str, tuple[float, float]]) -> frozenset[str]:
    """Signatures of ops that take far longer than larger ones.

    That is several times as long as larger ones of the same kind (which differ in sizes only), or very many times as
    long as larger ones of any kind; each time as long as the median of them.

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
    """For each work, the median seconds of the points with more; none where these are few."""
    found: dict[float, float] = {}
    larger: list[float] = []
    for work, same in groupby(reversed(points), key=lambda point: point[0]):
        if len(larger) >= _MIN_OTHERS:
            found[work] = larger[len(larger) // 2]
        for _, seconds in same:
            insort(larger, seconds)
    return found


_SIZES = re.compile(r"\[[\d, -]*\]")


def _kind(signature: str) -> str:
    """A signature without sizes."""
    return _SIZES.sub("[]", signature)
