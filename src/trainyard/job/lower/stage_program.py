"""The program of the ranks of one stage."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from trainyard.job.lower.buckets import Bucket
from trainyard.job.lower.segment import Segment
from trainyard.job.schedule import Kind


@dataclass(frozen=True, eq=False)
class StageProgram:
    """The program of the ranks of one stage: one segment per kind of action.

    ``buckets`` are trained; ``frozen`` are those of whose values each rank keeps a part.
    """

    stage: int
    segments: Mapping[Kind, Segment]
    buckets: tuple[Bucket, ...]
    frozen: tuple[Bucket, ...]

    @cached_property
    def results(self) -> tuple[str, ...]:
        """The losses, metrics and buffers that it makes, by ``loss:loss`` and the like."""
        return tuple(result for segment in self.segments.values() for _, result in segment.results)

    @cached_property
    def freed(self) -> Mapping[Kind, frozenset[str]]:
        """The values that no segment takes after this one."""
        last = {slot.name: kind for kind, seg in self.segments.items() for slot in seg.values_taken}
        return {kind: frozenset(n for n, k in last.items() if k == kind) for kind in self.segments}

    @cached_property
    def kept(self) -> Mapping[Kind, frozenset[str]]:
        """The outputs of a segment that a later one takes; not those that are made again before."""
        found: dict[Kind, set[str]] = {kind: set() for kind in self.segments}
        maker: dict[str, Kind] = {}
        for kind, segment in self.segments.items():
            for slot in segment.values_taken:
                if slot.name in maker:
                    found[maker[slot.name]].add(slot.name)
            maker |= dict.fromkeys(segment.outputs, kind)
        return {kind: frozenset(names) for kind, names in found.items()}
