"""Interleaved 1F1B: several stages per rank shorten the warm-up.

References
----------
Narayanan et al., Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM, arXiv
2104.04473, section 2.2.2 and figure 4.
"""

from __future__ import annotations

from trainyard.job.schedule import Action, Schedule
from trainyard.job.schedules.arguments import require_counts
from trainyard.job.schedules.one_f_one_b import warm_up_then_alternate
from trainyard.reading.arguments import WrongValueError


def interleaved(num_ranks: int, num_microbatches: int, num_stages_per_rank: int = 2) -> Schedule:
    """Make the interleaved 1F1B schedule: rank ``r`` owns stages ``r, p + r, 2p + r, ...``.

    ``m`` is a multiple of ``p``. A rank idles ``(p - 1)(f + b)`` of the step: a share ``1/v`` of what 1F1B idles
    over the same layers, for ``v`` times the sends and more microbatches held. With one stage per rank it only
    holds more than 1F1B.
    """
    p, m, v = num_ranks, num_microbatches, num_stages_per_rank
    require_counts(p, m, v)
    if m % p != 0:
        below, above = m // p * p, -(-m // p) * p
        choices = f"{below} or {above}" if below else f"{above}"
        raise WrongValueError(
            f"interleaved needs num_microbatches to be a multiple of num_ranks, got {m} microbatches on {p} "
            f"ranks; use {choices} microbatches, or 'one_f_one_b' or 'breadth_first', which take any number"
        )
    # Microbatches go through a rank's stages in groups of p: the whole group through one stage, then the
    # next. Backward, the same with the rank's stages in reverse.
    order = [(chunk, group + k) for group in range(0, m, p) for chunk in range(v) for k in range(p)]
    actions = []
    for rank in range(p):
        forwards = [Action("F", chunk * p + rank, k) for chunk, k in order]
        backwards = [Action("B", (v - 1 - chunk) * p + rank, k) for chunk, k in order]
        # The last rank can start its first backward after a group has been through all v stages but the last;
        # each rank before it waits for one more send each way.
        num_warmup = (v - 1) * p + 2 * (p - 1 - rank)
        actions.append(warm_up_then_alternate(forwards, backwards, num_warmup))
    return Schedule("interleaved", p * v, m, tuple(actions))
