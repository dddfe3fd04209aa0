"""Seconds of ops, measured on this machine and remembered between processes.

If an op cannot be measured, or would take too much memory or time, the roofline gives its seconds. One that PyTorch does
not have for the types of its operands fails in training, too: no plan has it.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import fx

from trainyard.cost.measure_processes import Group, ProcessResults, measure_in_processes
from trainyard.cost.measurements import Entry, Failure, Measurement, Measurements, Points
from trainyard.cost.ops import BUFFER_OPS, BufferOp, OpSeconds, Roofline, Sources, is_free
from trainyard.cost.signature import op_signature
from trainyard.cost.trace import Trace
from trainyard.cost.trace_memory import traces_within
from trainyard.hardware.busy import BUSY, OtherLoad, other_load_now
from trainyard.hardware.devices import DeviceSpec
from trainyard.hardware.measure import free_memory_bytes
from trainyard.hardware.remembered import measuring
from trainyard.progress import Progress, no_progress
from trainyard.reading import listed

__all__ = ["Conditions", "MeasuredOps", "OpError", "measure_ops"]

_MEMORY_SHARE = 0.5  # of the memory that is free now, for all processes together


class OpError(Exception):
    """An op that cannot run; the message names it, its layer and what PyTorch says.

    No ValueError: another plan has the same op, so a search does not go on without it.
    """

    def __init__(self, node: fx.Node, why: str) -> None:
        values = [n.meta.get("val") for n in node.all_input_nodes]
        types = (str(v.dtype).removeprefix("torch.") for v in values if isinstance(v, torch.Tensor))
        layer = node.meta.get("layer")
        super().__init__(
            f"{node.target} on {listed(dict.fromkeys(types))}{f' in {layer}' if layer else ''} cannot run: {why}. It was "
            "tried on this machine while ops were measured, and would end the training: convert its operands, as in "
            "x.float(), or use another op"
        )


@dataclass(frozen=True)
class Conditions:
    """The conditions under which ops are measured.

    Attributes
    ----------
    num_processes : processes that run at the same time. If there are more than cores, they take turns and find their
        caches cold. The seconds of an op are those in which it runs; the simulation adds the waiting for its turn.
    num_threads : threads of each process.
    """

    num_processes: int
    num_threads: int

    @classmethod
    def of(cls, num_processes: int, num_cores: int) -> Conditions:
        """The conditions under which the runtime starts its processes on this machine."""
        return cls(num_processes, max(1, num_cores // num_processes))

    @property
    def key(self) -> str:
        """Their name in the file of measurements."""
        return f"{self.num_processes}x{self.num_threads}"


class MeasuredOps(OpSeconds):
    """Measured seconds of ops; the roofline's for ops that were not measured.

    Parameters
    ----------
    seconds : measured seconds, by `op_signature`.
    buffer_ops : points (elements, seconds) of each op on float32 buffers.
    reasons : why an op was not measured, by signature.
    busy : signatures of ops that were measured while other work used the cores.
    faults : why an op fails in training, too, by signature.

    Attributes
    ----------
    measured : signatures that were asked for so far and have measured seconds.
    estimated : signatures that were asked for so far and have the roofline's.
    """

    def __init__(
        self,
        seconds: Mapping[str, float],
        buffer_ops: Mapping[str, Points],
        reasons: Mapping[str, str] | None = None,
        busy: Collection[str] = (),
        faults: Mapping[str, str] | None = None,
    ) -> None:
        self.seconds, self.buffer_ops = dict(seconds), dict(buffer_ops)
        self.reasons, self.busy = dict(reasons or {}), frozenset(busy)
        self.faults = dict(faults or {})
        self.measured: set[str] = set()
        self.estimated: set[str] = set()
        self._roofline = Roofline()

    def __call__(self, node: fx.Node, device: DeviceSpec) -> float:
        if is_free(node):
            return 0.0
        signature = op_signature(node)
        if signature in self.faults:
            raise OpError(node, self.faults[signature])
        known = self.seconds.get(signature)
        if known is not None:
            self.measured.add(signature)
            return known
        self.estimated.add(signature)
        return self._roofline(node, device)

    def buffer_op_s(self, what: BufferOp, num_elements: int, element_bytes: int, device: DeviceSpec) -> float:
        if what not in self.buffer_ops:
            return super().buffer_op_s(what, num_elements, element_bytes, device)
        (small, small_s), (large, large_s) = self.buffer_ops[what]
        words = num_elements * element_bytes / 4
        slope = max(0.0, large_s - small_s) / (large - small)
        return max(0.0, small_s + slope * (words - small)) if words else 0.0

    def sources(self) -> Sources:
        estimated = {
            s: self.reasons.get(s, "not among the ops that were measured") for s in sorted(self.estimated)
        }
        return Sources(len(self.measured), estimated, len(self.measured & self.busy))


def measure_ops(
    groups: Iterable[Sequence[Trace]],
    conditions: Conditions,
    budget_s: float = 15.0,
    again: bool = False,
    progress: Progress = no_progress,
) -> MeasuredOps:
    """Seconds of the ops of some traces. What the cache lacks is measured.

    Parameters
    ----------
    groups : traces that run one after another in each group. A group is measured if the cache lacks one of its ops,
        or has seconds of it that are to be measured again.
    conditions : the conditions to measure under.
    budget_s : seconds for the repetitions. Every group runs a few times, even if that takes longer, up to a limit for
        all groups together.
    again : whether to measure all groups, whatever the cache has.
    progress : called with the number of the op that is measured.
    """
    limit_bytes = int(_MEMORY_SHARE * free_memory_bytes() / conditions.num_processes)
    whole: list[Group] = [tuple(group) for group in groups]
    asked = [traces_within(group, limit_bytes) for group in whole]
    left_out = _all_signatures(whole) - _all_signatures(asked)
    entry, not_tried = Measurements.read().of(conditions.key), ""
    if again or any(_missing(asked, entry, _to_repeat(asked, entry))):
        with measuring(lambda: progress("waiting for another process that measures this machine", "")):
            entry, not_tried = _measured(asked, conditions, budget_s, again, progress)
    reasons = {signature: failure.why for signature, failure in entry.failed.items()}
    if not_tried:
        reasons = dict.fromkeys(_all_signatures(asked), not_tried) | reasons
    reasons |= dict.fromkeys(
        left_out, f"needs more than the {limit_bytes / 2**30:.3g} GiB that measuring may use"
    )
    wrong = entry.implausible() & entry.busy()
    reasons |= dict.fromkeys(wrong, "was slower than larger ops, while other work had the cores")
    seconds = {s: m.seconds for s, m in entry.ops.items() if s not in wrong}
    faults = {s: failure.why for s, failure in entry.failed.items() if failure.is_fault}
    return MeasuredOps(seconds, entry.buffer_ops, reasons, entry.busy(), faults)


def _all_signatures(groups: Iterable[Group]) -> frozenset[str]:
    return frozenset().union(*(trace.signatures for group in groups for trace in group))


def _to_repeat(groups: Iterable[Group], entry: Entry) -> frozenset[str]:
    """Ops to measure again: doubtful ones, and, if the machine is quiet now, those that other work disturbed."""
    asked = _all_signatures(groups)
    disturbed = entry.disturbed() & asked
    if disturbed and other_load_now() > BUSY:
        disturbed = frozenset()
    return disturbed | entry.doubtful() & asked


def _missing(
    groups: Iterable[Group], entry: Entry, repeat: frozenset[str] = frozenset()
) -> tuple[list[Group], list[str]]:
    """Groups, and ops on flat buffers, to measure.

    A group is missing if one of its ops is to be repeated, or is neither known nor known to fail.
    """
    known = (entry.ops.keys() | entry.failed.keys()) - repeat
    missing = []
    for group in groups:
        wanted = _all_signatures([group])
        if not wanted <= known:
            missing.append(group)
            known |= wanted
    disturbed = bool(repeat) and entry.buffer_ops_other_load > BUSY
    return missing, list(BUFFER_OPS) if disturbed or not entry.buffer_ops.keys() >= set(BUFFER_OPS) else []


def _measured(
    groups: list[Group], conditions: Conditions, budget_s: float, again: bool, progress: Progress
) -> tuple[Entry, str]:
    """Measure what is missing, and add it to the cache.

    The cache is read anew, because another process may have added to it.

    Returns
    -------
    entry : what the cache has now.
    not_tried : why the ops that it lacks were not tried; see `ProcessResults`.
    """
    cache = Measurements.read()
    entry = cache.of(conditions.key)
    if again:
        asked = _all_signatures(groups)
        entry.ops = {s: m for s, m in entry.ops.items() if s not in asked}
        entry.failed = {s: f for s, f in entry.failed.items() if s not in asked}
        entry.buffer_ops = {}
    not_tried = ""
    repeat = _to_repeat(groups, entry)
    # Seconds that are implausible after the first time are measured once more.
    for _ in range(2):
        missing, buffer_ops = _missing(groups, entry, repeat)
        if not_tried or not (missing or buffer_ops):
            break
        watch = OtherLoad()
        known_to_fail = {s: failure.why for s, failure in entry.failed.items()}
        found = measure_in_processes(
            missing,
            buffer_ops,
            known_to_fail,
            conditions.num_processes,
            conditions.num_threads,
            budget_s,
            progress,
        )
        entry.add(_entry(found, missing, entry, watch.share()))
        cache.write()
        not_tried = found.not_tried
        repeat = entry.doubtful() & _all_signatures(groups)
    return entry, not_tried


def _entry(found: ProcessResults, groups: Iterable[Group], known: Entry, other_load: float) -> Entry:
    """Results in the form in which they are remembered."""
    when_s = time.time()
    work = {s: w for group in groups for trace in group for s, w in trace.work.items()}
    return Entry(
        {
            s: Measurement(seconds, spread, work[s], when_s, other_load)
            for s, (seconds, spread) in found.seconds.items()
        },
        {
            s: Failure(why, when_s, s in found.faults)
            for s, why in found.failed.items()
            if s not in known.failed
        },
        found.buffer_ops,
        other_load,
    )
