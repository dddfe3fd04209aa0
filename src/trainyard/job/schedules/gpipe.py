"""GPipe: all forwards of a step, then all backwards.

References
----------
Huang et al., GPipe: Efficient Training of Giant Neural Networks using Pipeline Parallelism, arXiv 1811.06965,
section 2.2 and figure 2c.
"""

from __future__ import annotations

from trainyard.job.schedule import Action, Schedule
from trainyard.job.schedules.arguments import require_counts, require_stages_per_rank


def gpipe(num_ranks: int, num_microbatches: int, num_stages_per_rank: int = 1) -> Schedule:
    """Make the GPipe schedule: rank ``r`` owns stage ``r`` and holds all microbatches at once.

    A rank idles ``(p - 1)(f + b)`` of the step; the paper's K and M are p and m. Backwards run in the order of
    the forwards; figure 2c of the paper draws them in reverse, which takes the same time. For several stages per
    rank see `breadth_first`.
    """
    require_counts(num_ranks, num_microbatches, num_stages_per_rank)
    require_stages_per_rank("gpipe", num_stages_per_rank, 1)
    microbatches = range(num_microbatches)
    actions = tuple(
        tuple([Action("F", rank, k) for k in microbatches] + [Action("B", rank, k) for k in microbatches])
        for rank in range(num_ranks)
    )
    return Schedule("gpipe", num_ranks, num_microbatches, actions)
