"""Step reports of all ranks that a launcher started."""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.distributed as dist

from trainyard.job.run.config import RankStep

__all__ = ["gathered"]


def gathered(report: RankStep, num_ranks: int, device: torch.device) -> list[RankStep]:
    """The reports of all ranks; only what differs between them travels."""
    if num_ranks == 1:
        return [report]
    own = [report.seconds, float(report.peak_memory_bytes), float(report.sent_bytes), report.data_s]
    mine = torch.tensor(own, dtype=torch.float64, device=device)
    all_of_them = [torch.empty_like(mine) for _ in range(num_ranks)]
    dist.all_gather(all_of_them, mine)
    return [
        replace(report, rank=r, seconds=s, peak_memory_bytes=int(memory), sent_bytes=int(sent), data_s=data_s)
        for r, (s, memory, sent, data_s) in enumerate(t.tolist() for t in all_of_them)
    ]
