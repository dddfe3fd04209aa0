"""The result of simulating a plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from trainyard.cost.ops import Sources
from trainyard.cost.overhead import FRAGMENTATION
from trainyard.engine.timeline import Timeline
from trainyard.job.plan import Plan
from trainyard.job.simulation.memory import MEMORY_KINDS, TENSOR_KINDS
from trainyard.job.sizes import per_second_text, size_text
from trainyard.shown import ShownOnPage

_GIB = 2**30
_TIGHT = 0.03  # Memory is called tight if less than this share of the limit is left free.


class ShareMemory(NamedTuple):
    """Memory of ranks that hold one of the unequal shares of a mesh.

    Attributes
    ----------
    pipeline : the pipeline rank.
    parts : that they hold, as in ``3 of 4 parts along data``.
    peak_bytes, limit_bytes : most that one of them uses, and what it may use of its smallest device.
    """

    pipeline: int
    parts: str
    peak_bytes: int
    limit_bytes: int


@dataclass(frozen=True, eq=False, repr=False)
class Simulation(ShownOnPage):
    """One step of a plan in time and memory. Tuples have one entry per pipeline rank; all ranks of its mesh are
    alike, or, if they hold unequal shares, the entry is of those that are short of most memory, else of the fullest.

    Attributes
    ----------
    step_s : seconds of a step.
    timeline : every task; device ``i`` is pipeline rank ``i``.
    memory : bytes by kind (`MEMORY_KINDS`) at the moment when a rank uses most.
    memory_limit_bytes : what the rank may use of its smallest device (`DeviceSpec.usable_bytes`).
    breakdown : mean seconds per rank by what a rank does: ``forward``, ``backward``, ``recompute``,
        ``weight_gradient``, ``optimizer``, ``communication`` (that computation does not hide) and ``bubble``;
        they add up to ``step_s``.
    exposed : the communication by its kind.
    num_bytes : that each rank sends in a step by kind of communication, as `collective_cost` counts them.
    work_s : seconds of computing of each rank in a step, as if it had its cores for itself.
    sent_bytes : that each rank sends in a step, counted as ring algorithms send.
    model_flops : of a step, without recomputation, on all ranks together.
    mfu : ``model_flops`` over what the devices of the plan could have done at their peak in ``step_s``; see
        `plausible_mfu`.
    sources : where the seconds of ops come from; None where none are measured.
    shares : of ranks of unequal shares, what each share needs.
    by_length : simulations of steps on batches of each size of the model's lengths, by size; this one is that of the
        largest. Empty where all batches have one length.
    """

    plan: Plan
    step_s: float
    timeline: Timeline = field(repr=False)
    memory: tuple[Mapping[str, int], ...]
    memory_limit_bytes: tuple[int, ...]
    breakdown: Mapping[str, float]
    exposed: Mapping[str, float]
    num_bytes: tuple[Mapping[str, int], ...]
    sent_bytes: tuple[int, ...]
    work_s: tuple[float, ...]
    model_flops: float
    mfu: float
    sources: Sources | None = None
    shares: tuple[ShareMemory, ...] = ()
    by_length: Mapping[int, Simulation] = field(default_factory=dict, repr=False)

    @property
    def peak_bytes(self) -> tuple[int, ...]:
        """Most memory that each rank uses."""
        return tuple(sum(kinds.values()) for kinds in self.memory)

    @property
    def tensor_bytes(self) -> tuple[int, ...]:
        """Memory of tensors on each rank: the memory that PyTorch counts as allocated."""
        return tuple(sum(kinds[kind] for kind in TENSOR_KINDS) for kinds in self.memory)

    @property
    def reserved_bytes(self) -> tuple[int, ...]:
        """Memory of tensors and of fragmentation on each rank: the memory that PyTorch counts as reserved."""
        return tuple(
            tensors + kinds[FRAGMENTATION]
            for tensors, kinds in zip(self.tensor_bytes, self.memory, strict=True)
        )

    @property
    def peak_memory_bytes(self) -> int:
        """Most memory that any rank uses."""
        return max(self.peak_bytes)

    @property
    def shortage_bytes(self) -> tuple[int, ...]:
        """Memory that each rank lacks; 0 where it suffices."""
        pairs = zip(self.peak_bytes, self.memory_limit_bytes, strict=True)
        return tuple(max(0, used - limit) for used, limit in pairs)

    @property
    def fits(self) -> bool:
        """True if every rank has enough memory."""
        return not any(self.shortage_bytes)

    @property
    def shortage(self) -> str:
        """A message about the rank that lacks most memory, with ways out; empty if the plan fits."""
        short = max(self.shortage_bytes)
        if not short:
            return ""
        rank = self.shortage_bytes.index(short)
        kinds = self.memory[rank]
        most = max(MEMORY_KINDS, key=lambda name: kinds.get(name, 0))
        limit = self.memory_limit_bytes[rank]
        where = f"a device of pipeline rank {rank}" if len(self.memory) > 1 else "a device"
        return (
            f"{where} needs {size_text(self.peak_bytes[rank])}, and a plan may use {size_text(limit)} of its memory: "
            f"{size_text(short)} are missing. Most is for {most}. {_REMEDIES[most]}"
        )

    @property
    def tightness(self) -> str:
        """A message that a device's memory is almost full; empty if it is not, or if the plan does not fit."""
        pairs = zip(self.peak_bytes, self.memory_limit_bytes, strict=True)
        used, limit = max(pairs, key=lambda pair: pair[0] / pair[1])
        if not (1.0 - _TIGHT) * limit < used <= limit:
            return ""
        return (
            f"Memory is tight: a device needs {size_text(used)} of the {size_text(limit)} that a plan may use "
            f"and leaves less than {100 * _TIGHT:.0f} % free. If memory runs out, take fewer rows, or recompute more."
        )

    @property
    def plausible_mfu(self) -> float | None:
        """`mfu`; None where it would be above 1, because the devices do more than the peak that is known of them."""
        return self.mfu if self.mfu <= 1.0 else None

    @property
    def ideal_step_s(self) -> float:
        """Seconds that a step would take if the devices computed ``model_flops`` at their peak."""
        return self.mfu * self.step_s

    @property
    def rows_per_s(self) -> float:
        """Rows of the batch trained in a second."""
        return self.plan.num_rows / self.step_s

    @property
    def time_and_memory_text(self) -> str:
        """Step time and peak memory of a device, as text."""
        return f"{_seconds(self.step_s)} a step, {size_text(self.peak_memory_bytes)}"

    def explain(self) -> str:
        """The result in sentences: how long, where the time goes, what fills the memory, what is short."""
        mfu = self.plausible_mfu
        share = "more than" if mfu is None else f"{100 * mfu:.1f} % of"
        parts = [
            f"A step takes {_seconds(self.step_s)} ({per_second_text(self.rows_per_s)} rows/s), {share} the devices' peak"
            f"{'' if mfu is not None else ' as it is known, which is too low'}.",
            "Time: "
            + ", ".join(f"{name} {100 * s / self.step_s:.1f} %" for name, s in _largest(self.breakdown))
            + ".",
        ]
        if self.exposed:
            waits = (f"{name} {_seconds(s)}" for name, s in _largest(self.exposed))
            parts.append("Communication that nothing hides: " + ", ".join(waits) + ".")
        fullest = max(range(len(self.memory)), key=lambda i: self.peak_bytes[i] / self.memory_limit_bytes[i])
        kinds = ", ".join(f"{name} {size / _GIB:.3g}" for name, size in _largest(self.memory[fullest]))
        parts.append(
            f"Memory: pipeline rank {fullest} is fullest with {self.peak_bytes[fullest] / _GIB:.3g} of "
            f"{self.memory_limit_bytes[fullest] / _GIB:.3g} GiB ({kinds})."
        )
        if not self.fits:
            parts.append(f"It does not fit: {self.shortage}")
        if self.tightness:
            parts.append(self.tightness)
        return "\n".join(parts)


_REMEDIES = {
    "parameters": "Cut the model further, or divide parameters over ranks (zero).",
    "older weights": "Take fewer stages, or a schedule that updates when fewer microbatches are in flight.",
    "gradients": "Cut the model further, or divide gradients over ranks (zero).",
    "optimizer": "Cut the model further, or divide optimizer state over ranks (zero).",
    "activations": "Recompute, take smaller microbatches, or another schedule.",
    "temporaries": "Take smaller microbatches, or cut the ops (tensor).",
    "communication": "Take smaller buckets or fewer microbatches in flight.",
    "context": "Take devices with more memory.",
    "communication buffers": "Let fewer groups communicate: fewer axes, or expert parallelism of fewer ranks.",
    "fragmentation": "Take smaller microbatches.",
}


def _largest(parts: Mapping[str, float]) -> list[tuple[str, float]]:
    return sorted(((k, v) for k, v in parts.items() if v > 0), key=lambda item: -item[1])


def _seconds(value_s: float) -> str:
    return f"{value_s:.4g} s" if value_s >= 1 else f"{1000 * value_s:.4g} ms"
