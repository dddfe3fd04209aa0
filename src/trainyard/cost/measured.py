"""Seconds of ops measured on this machine, remembered between processes.

An op whose measurement fails, or would take too much memory or time, has the roofline's seconds: measuring never stops
what it is for.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from torch import fx

from trainyard.cost.fitting import traces_within
from trainyard.cost.measure_processes import ProcessResults, measure_in_processes
from trainyard.cost.measurements import Entry, Failure, Measurement, Measurements, Points
from trainyard.cost.ops import PASSES, OpSeconds, Pass, Roofline, Sources, is_free
from trainyard.cost.signature import op_signature
from trainyard.cost.trace import Trace
from trainyard.hardware.busy import BUSY, OtherLoad, other_load_now
from trainyard.hardware.devices import DeviceSpec
from trainyard.hardware.measure import free_memory_bytes
from trainyard.hardware.remembered import measuring

__all__ = ["Conditions", "MeasuredOps", "measure_ops"]

# Of the memory that is free now, for all processes together.
_MEMORY_SHARE = 0.5

_Group = tuple[Trace, ...]


@dataclass(frozen=True)
class Conditions:
    """Under which ops are measured.

    Attributes
    ----------
    num_processes : that run at the same time. More than there are cores take turns and find their caches taken:
        an op's seconds are those that it runs, and waiting for its turn is for the simulation to add.
    num_threads : of each.
    """

    num_processes: int
    num_threads: int

    @classmethod
    def of(cls, num_processes: int, num_cores: int) -> Conditions:
        """As the runtime starts processes on this machine."""
        return cls(num_processes, max(1, num_cores // num_processes))

    @property
    def key(self) -> str:
        return f"{self.num_processes}x{self.num_threads}"


class MeasuredOps(OpSeconds):
    """Measured seconds; ops that were not measured have the roofline's.

    Parameters
    ----------
    seconds : by `op_signature`.
    passes : seconds of each pass over float32 buffers, as points (elements, seconds).
    reasons : why ops were not measured, by signature.
    busy : signatures of ops that were measured while other work had the cores.

    Attributes
    ----------
    measured, estimated : signatures that were asked for so far, and had measured seconds, or the roofline's.
    """

    def __init__(
        self,
        seconds: Mapping[str, float],
        passes: Mapping[str, Points],
        reasons: Mapping[str, str] | None = None,
        busy: Collection[str] = (),
    ) -> None:
        self.seconds, self.passes = dict(seconds), dict(passes)
        self.reasons, self.busy = dict(reasons or {}), frozenset(busy)
        self.measured: set[str] = set()
        self.estimated: set[str] = set()
        self._roofline = Roofline()

    def __call__(self, node: fx.Node, device: DeviceSpec) -> float:
        if is_free(node):
            return 0.0
        signature = op_signature(node)
        known = self.seconds.get(signature)
        if known is not None:
            self.measured.add(signature)
            return known
        self.estimated.add(signature)
        return self._roofline(node, device)

    def pass_s(self, what: Pass, num_elements: int, element_bytes: int, device: DeviceSpec) -> float:
        if what not in self.passes:
            return super().pass_s(what, num_elements, element_bytes, device)
        (small, small_s), (large, large_s) = self.passes[what]
        words = num_elements * element_bytes / 4
        slope = max(0.0, large_s - small_s) / (large - small)
        return max(0.0, small_s + slope * (words - small)) if words else 0.0

    def sources(self) -> Sources:
        estimated = {
            s: self.reasons.get(s, "not among the ops that were measured") for s in sorted(self.estimated)
        }
        return Sources(len(self.measured), estimated, len(self.measured & self.busy))


def measure_ops(
    groups: Iterable[Sequence[Trace]], conditions: Conditions, budget_s: float = 15.0, again: bool = False
) -> MeasuredOps:
    """Seconds of the ops of some traces, measured where the cache does not have them.

    Parameters
    ----------
    groups : traces that run one after another, each group by itself. A group is measured if one of its ops is
        not known, or is not to be believed.
    conditions : see `Conditions`.
    budget_s : time for the repetitions; every group runs a few times however long that takes, within a limit on all.
    again : measure all of them, whatever the cache has.
    """
    limit_bytes = int(_MEMORY_SHARE * free_memory_bytes() / conditions.num_processes)
    whole = [tuple(group) for group in groups]
    asked = [traces_within(group, limit_bytes) for group in whole]
    left_out = _all_signatures(whole) - _all_signatures(asked)
    entry, rest = Measurements.read().of(conditions.key), ""
    if again or any(_missing(asked, entry, _to_repeat(asked, entry))):
        with measuring():
            entry, rest = _measured(asked, conditions, budget_s, again)
    reasons = {signature: failure.why for signature, failure in entry.failed.items()}
    if rest:
        reasons = dict.fromkeys(_all_signatures(asked), rest) | reasons
    reasons |= dict.fromkeys(
        left_out, f"needs more than the {limit_bytes / 2**30:.3g} GiB that measuring may use"
    )
    wrong = entry.contradicting() & entry.busy()
    reasons |= dict.fromkeys(wrong, "was slower than larger ops, while other work had the cores")
    seconds = {s: m.seconds for s, m in entry.ops.items() if s not in wrong}
    return MeasuredOps(seconds, entry.passes, reasons, entry.busy())


def _all_signatures(groups: Iterable[_Group]) -> frozenset[str]:
    return frozenset().union(*map(_signatures, groups))


def _signatures(group: _Group) -> frozenset[str]:
    return frozenset().union(*(trace.signatures for trace in group))


def _to_repeat(groups: Iterable[_Group], entry: Entry) -> frozenset[str]:
    """Which of the ops to measure again: what contradicts others, and, if it is quiet now, what other work disturbed."""
    asked = _all_signatures(groups)
    disturbed = entry.disturbed() & asked
    if disturbed and other_load_now() > BUSY:
        disturbed = frozenset()
    return disturbed | entry.doubtful() & asked


def _missing(
    groups: Iterable[_Group], entry: Entry, repeat: frozenset[str] = frozenset()
) -> tuple[list[_Group], list[str]]:
    """Groups with an op that is neither known nor known to fail, or is to be repeated, and passes of which this holds."""
    known = (entry.ops.keys() | entry.failed.keys()) - repeat
    missing = []
    for group in groups:
        wanted = _signatures(group)
        if not wanted <= known:
            missing.append(group)
            known |= wanted
    disturbed = bool(repeat) and entry.passes_others > BUSY
    return missing, list(PASSES) if disturbed or not entry.passes else []


def _measured(
    groups: list[_Group], conditions: Conditions, budget_s: float, again: bool
) -> tuple[Entry, str]:
    """What the cache has, with what another process has put there since it was read, and what it lacks.

    Returns
    -------
    Also why ops are in neither of both.
    """
    cache = Measurements.read()
    entry = cache.of(conditions.key)
    if again:
        asked = _all_signatures(groups)
        entry.ops = {s: m for s, m in entry.ops.items() if s not in asked}
        entry.failed = {s: f for s, f in entry.failed.items() if s not in asked}
        entry.passes = {}
    rest = ""
    repeat = _to_repeat(groups, entry)
    # What contradicts the others after the first time is measured once more.
    for _ in range(2):
        missing, passes = _missing(groups, entry, repeat)
        if rest or not (missing or passes):
            break
        watch = OtherLoad()
        known_to_fail = {s: failure.why for s, failure in entry.failed.items()}
        found = measure_in_processes(
            missing, passes, known_to_fail, conditions.num_processes, conditions.num_threads, budget_s
        )
        entry.add(_entry(found, missing, entry, watch.share()))
        cache.write()
        rest = found.rest
        repeat = entry.doubtful() & _all_signatures(groups)
    return entry, rest


def _entry(found: ProcessResults, groups: Iterable[_Group], known: Entry, others: float) -> Entry:
    """What was found now, in the form in which it is remembered."""
    when_s = time.time()
    work = {s: w for group in groups for trace in group for s, w in trace.work.items()}
    return Entry(
        {
            s: Measurement(seconds, spread, work[s], when_s, others)
            for s, (seconds, spread) in found.seconds.items()
        },
        {s: Failure(why, when_s) for s, why in found.failed.items() if s not in known.failed},
        found.passes,
        others,
    )
