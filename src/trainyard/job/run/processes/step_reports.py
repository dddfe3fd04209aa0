"""Reports of a step, of all ranks that a launcher started."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist

from trainyard.job.run.config import PARTS, RankStep

__all__ = ["gathered"]

_COUNTS = ("peak_memory_bytes", "sent_bytes")
_SECONDS = ("seconds", *PARTS)


def gathered(report: RankStep, num_ranks: int, device: torch.device) -> list[RankStep]:
    """Return the reports of all ranks; only what differs between them travels."""
    if num_ranks == 1:
        return [report]
    own = [float(getattr(report, name)) for name in (*_COUNTS, *_SECONDS)]
    mine = torch.tensor(own, dtype=torch.float64, device=device)
    all_of_them = [torch.empty_like(mine) for _ in range(num_ranks)]
    dist.all_gather(all_of_them, mine)
    found = []
    for rank, values in enumerate(each.tolist() for each in all_of_them):
        counts = map(int, values[: len(_COUNTS)])
        own_fields: dict[str, Any] = dict(
            zip((*_COUNTS, *_SECONDS), (*counts, *values[len(_COUNTS) :]), strict=True)
        )
        found.append(replace(report, rank=rank, **own_fields))
    return found
