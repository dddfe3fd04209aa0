"""Breadth-first pipeline: GPipe with several stages per rank, stage by stage.

References
----------
Lamy-Poirier, Breadth-First Pipeline Parallelism, arXiv 2211.05953.
"""

from __future__ import annotations

from trainyard.job.schedule import Action, Schedule
from trainyard.job.schedules.arguments import require_counts


def breadth_first(num_ranks: int, num_microbatches: int, num_stages_per_rank: int = 1) -> Schedule:
    """Make the breadth-first schedule: every microbatch through one local stage, then through the next.

    Rank ``r`` owns stages ``r, p + r, 2p + r, ...``. For ``m >= p`` it idles ``(p - 1)(f + b)``, as the
    interleaved 1F1B does; it holds all microbatches, but each stage's weights are needed, and its gradients
    complete, in one stretch, which suits sharded data parallelism.
    """
    require_counts(num_ranks, num_microbatches, num_stages_per_rank)
    num_stages = num_ranks * num_stages_per_rank
    microbatches = range(num_microbatches)
    actions = []
    for rank in range(num_ranks):
        stages = range(rank, num_stages, num_ranks)
        forwards = [Action("F", stage, k) for stage in stages for k in microbatches]
        backwards = [Action("B", stage, k) for stage in reversed(stages) for k in microbatches]
        actions.append((*forwards, *backwards))
    return Schedule("breadth_first", num_stages, num_microbatches, tuple(actions))
