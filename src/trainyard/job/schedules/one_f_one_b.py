"""1F1B: after a warm-up, one forward and one backward in turn.

References
----------
Narayanan et al., Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM, arXiv
2104.04473, section 2.2.1 (PipeDream-Flush: arXiv 2006.09503); Fan et al., DAPPLE, arXiv 2007.01045.
"""

from __future__ import annotations

from trainyard.job.schedule import Action, Schedule
from trainyard.job.schedules.arguments import require_counts, require_stages_per_rank


def one_f_one_b(num_ranks: int, num_microbatches: int, num_stages_per_rank: int = 1) -> Schedule:
    """Make the 1F1B schedule: rank ``r`` owns stage ``r`` and holds at most ``p - r`` microbatches.

    A rank idles ``(p - 1)(f + b)`` of the step, as in GPipe. For several stages per rank see `interleaved`.
    """
    require_counts(num_ranks, num_microbatches, num_stages_per_rank)
    require_stages_per_rank("one_f_one_b", num_stages_per_rank, 1)
    actions = []
    for rank in range(num_ranks):
        forwards = [Action("F", rank, k) for k in range(num_microbatches)]
        backwards = [Action("B", rank, k) for k in range(num_microbatches)]
        actions.append(warm_up_then_alternate(forwards, backwards, num_warmup=num_ranks - 1 - rank))
    return Schedule("one_f_one_b", num_ranks, num_microbatches, tuple(actions))


def warm_up_then_alternate(
    forwards: list[Action], backwards: list[Action], num_warmup: int
) -> tuple[Action, ...]:
    """Order a rank's work as `num_warmup` forwards, then a forward and a backward in turn, then what is left.

    A warm-up longer than the list of forwards takes them all.
    """
    warm = min(num_warmup, len(forwards))
    steady = [action for pair in zip(forwards[warm:], backwards, strict=False) for action in pair]
    return (*forwards[:warm], *steady, *backwards[len(forwards) - warm :])
