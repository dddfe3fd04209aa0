"""Whole values of a model in every process of a run, put together from the parts that the ranks hold."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from trainyard.job.run.checkpoint.same_run import PARAMS
from trainyard.job.run.checkpoint.snapshot import take
from trainyard.job.run.step.executor import Executor
from trainyard.program.boxes import narrowed

__all__ = ["gather_whole"]


def gather_whole(executor: Executor) -> dict[str, Tensor]:
    """Return parameters and buffers on the CPU of every rank, by ``param/<path>`` and ``buffer/<path>``.

    Collective. A number without dimensions is a row of one.
    """
    parts, num_ranks = take(executor, fields_wanted=(PARAMS,)), executor.plan.num_ranks
    if num_ranks == 1:
        return {key: part.tensor.reshape(part.shape) for key, part in parts.items()}
    described: list[Any] = [None] * num_ranks
    own = [(key, part.shape, part.tensor.dtype, part.boxes) for key, part in parts.items()]
    dist.all_gather_object(described, own)
    found: dict[str, Tensor] = {}
    for rank, entries in enumerate(described):
        for key, shape, dtype, boxes in entries:
            whole = found.setdefault(key, torch.empty(shape, dtype=dtype))
            for box in boxes:
                target = narrowed(whole, box.offsets, box.sizes)
                piece = torch.empty(box.sizes, dtype=dtype)
                if rank == executor.groups.rank:
                    piece.copy_(box.of(parts[key].tensor))
                dist.broadcast(piece, src=rank)
                target.copy_(piece)
    return found
