"""The part of a step that can be run op by op within a limit on memory, found before anything is allocated."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from trainyard.cost.trace import Instruction, Ref, SyntheticTensor, Trace

__all__ = ["traces_within"]


def traces_within(traces: Sequence[Trace], limit_bytes: int) -> tuple[Trace, ...]:
    """Traces that run one after another, without the ops that would need more memory, and without what needs those.

    Parameters
    ----------
    limit_bytes : limit on all values that live at one time.
    """
    account = _MemoryAccount(limit_bytes)
    return tuple(account.within(trace) for trace in traces)


class _MemoryAccount:
    """Follows what lives while traces run: values by key between them, results by position within one."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes, self.level_bytes = limit_bytes, 0
        self.values: dict[str, int] = {}
        self.roots: dict[int, int] = {}  # of what lives: the position whose memory it is in
        self.holders: Counter[int] = Counter()
        self.own_bytes: dict[int, int] = {}

    def within(self, trace: Trace) -> Trace:
        """The part of the next trace that is within the limit."""
        self.roots, self.own_bytes, self.holders = {}, {}, Counter()
        inputs = tuple(each for each in trace.inputs if self._take(*each))
        instructions = tuple(map(self._step, trace.instructions))
        outputs = tuple((key, index) for key, index in trace.outputs if index in self.roots)
        for key, index in outputs:
            self.values[key] = self.own_bytes.pop(self.roots[index], 0)
        self.level_bytes -= sum(self.own_bytes[root] for root in +self.holders if root in self.own_bytes)
        return Trace(inputs, instructions, outputs)

    def _take(self, key: str, index: int, leaves: Any) -> bool:
        if key not in self.values:
            size = _num_bytes(leaves)
            if self.level_bytes + size > self.limit_bytes:
                return False
            self.level_bytes += size
            self.values[key] = size
        # What only this trace takes is freed with its last use; the rest stays for the next ones.
        self._hold(index, index, self.values.pop(key) if key.startswith("value:") else 0)
        return True

    def _step(self, step: Instruction) -> Instruction:
        if self._runs(step):
            if step.shares is None:
                size = _num_bytes(step.leaves)
                self.level_bytes += size
                self._hold(step.index, step.index, size)
            else:
                self._hold(step.index, self.roots[step.shares])
        else:
            step = Instruction(step.index, None, (), {}, None, step.frees, None)
        frees = tuple(index for index in step.frees if index in self.roots)
        for index in frees:
            root = self.roots.pop(index)
            self.holders[root] -= 1
            if not self.holders[root]:
                self.level_bytes -= self.own_bytes[root]
        return replace(step, frees=frees)

    def _hold(self, index: int, root: int, num_bytes: int | None = None) -> None:
        self.roots[index] = root
        self.holders[root] += 1
        if num_bytes is not None:
            self.own_bytes[root] = num_bytes

    def _runs(self, step: Instruction) -> bool:
        """Return whether all that a step needs is here, and its result fits beside the live values."""
        if not all(index in self.roots for index in _refs((step.args, step.kwargs))):
            return False
        return step.shares is not None or self.level_bytes + _num_bytes(step.leaves) <= self.limit_bytes


def _num_bytes(leaves: Any) -> int:
    if isinstance(leaves, tuple):
        return sum(map(_num_bytes, leaves))
    return leaves.num_bytes if isinstance(leaves, SyntheticTensor) else 0


def _refs(value: Any) -> Iterable[int]:
    if isinstance(value, Ref):
        yield value.index
    elif isinstance(value, dict):
        for each in value.values():
            yield from _refs(each)
    elif isinstance(value, tuple | list):
        for each in value:
            yield from _refs(each)
