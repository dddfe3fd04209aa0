"""Row places: which rows of a step's batch the stages of one rank read."""

from __future__ import annotations

import torch

from trainyard.job.run.step.executor import Executor
from trainyard.job.run.step.state import local_part
from trainyard.program.placement import Shard

__all__ = ["row_places"]


def row_places(executor: Executor) -> tuple[int, ...]:
    """Return the places in the batch of the rows that a rank reads, in order; the first row alone if it reads none.

    It is what `Executor` takes of a batch: the rows of each microbatch, of which the rank has a part along the axes that
    divide them, and those of sums over the whole batch.
    """
    plan, rows = executor.plan, set[int]()
    for stage in executor.stages:
        for segment in stage.segments.values():
            names = [slot.name for slot in segment.inputs if slot.kind == "batch"]
            for first in range(0, plan.num_rows, plan.rows_per_microbatch):
                rows |= _places(executor, stage.stage, names, first, plan.rows_per_microbatch)
    if (totals := executor.own_totals) is not None:
        names = [slot.name for slot in totals.inputs if slot.kind == "batch"]
        rows |= _places(executor, totals.stage, names, 0, plan.num_rows)
    return tuple(sorted(rows)) or (0,)


def _places(executor: Executor, stage: int, names: list[str], first: int, num_rows: int) -> set[int]:
    found = set[int]()
    for name in names:
        placements = executor.lowered.inputs[stage][name]
        of_rows = {axis: p for axis, p in placements.items() if isinstance(p, Shard) and p.dim == 0}
        whole = torch.arange(first, first + num_rows)
        found |= {int(row) for row in local_part(whole, of_rows, executor.groups)}
    return found
