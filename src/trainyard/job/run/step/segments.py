"""Segments: ranges of a flat buffer of parameters that are updated with the same options."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from trainyard.job.optimizer.groups import ParameterGroup


@dataclass(frozen=True, eq=False)
class Segment:
    """A range of a bucket's master.

    Attributes
    ----------
    part : float32 [last - first], what PyTorch's optimizer knows; the master itself if it is all of it.
    group : of all its parameters.
    """

    first: int
    last: int
    part: torch.Tensor
    group: ParameterGroup

    @staticmethod
    def of(master: torch.Tensor, first: int, last: int, group: ParameterGroup) -> Segment:
        """The segment of a master from one element to before another."""
        return Segment(
            first, last, master if last - first == master.numel() else master[first:last].detach(), group
        )

    def give(self, master: torch.Tensor, grad: torch.Tensor) -> None:
        """Give the part its gradient. The master may lie elsewhere than before."""
        if self.part is not master:
            self.part.data = master[self.first : self.last]
        self.part.grad = grad[self.first : self.last]


def joined(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """Flat tensors one after the other: a view if they lie so in memory, else a copy."""
    if len(parts) == 1:
        return parts[0]
    first, starts = parts[0], [part.storage_offset() for part in parts]
    ends = [start + part.numel() for start, part in zip(starts, parts, strict=True)]
    in_one = all(part.untyped_storage().data_ptr() == first.untyped_storage().data_ptr() for part in parts)
    if in_one and starts[1:] == ends[:-1]:
        return first.as_strided((ends[-1] - starts[0],), (1,))
    return torch.cat(list(parts))
