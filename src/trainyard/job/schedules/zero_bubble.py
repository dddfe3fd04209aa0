"""Zero-bubble schedules: the backward is split, and the weight gradients fill what would be bubbles.

References
----------
Qi et al., Zero Bubble Pipeline Parallelism, arXiv 2401.10241: ZB-H1 and ZB-H2, section 2; ZB-V, section 6.
The paper's B is the I of `Kind`. The paper draws these schedules for F, I and W of equal length; for others
it searches (section 3), which these generators do not. ZB-H1 and ZB-H2 place one stage on a rank, ZB-V two.
"""

from __future__ import annotations

from collections import Counter
from itertools import chain

from trainyard.job.schedule import Action, Kind, Schedule
from trainyard.job.schedules.arguments import require_counts, require_stages_per_rank


def zero_bubble_h1(num_ranks: int, num_microbatches: int, num_stages_per_rank: int = 1) -> Schedule:
    """Make ZB-H1: the peak memory of 1F1B, and a third of its bubble where F, I and W take equally long.

    Every rank holds at most ``p`` microbatches: rank ``r`` warms up with ``p - r`` forwards, as in 1F1B, and
    lags by ``r`` weight gradients. Where ``f = i = w`` and ``m >= p``, a rank idles ``(p - 1)(f + i - w)`` of
    the step.
    """
    p, m = num_ranks, num_microbatches
    require_counts(p, m, num_stages_per_rank)
    require_stages_per_rank("zero_bubble_h1", num_stages_per_rank, 1)
    actions = tuple(_split_1f1b(rank, m, num_warmup=p - rank, lag=rank) for rank in range(p))
    return Schedule("zero_bubble_h1", p, m, actions)


def zero_bubble_h2(num_ranks: int, num_microbatches: int, num_stages_per_rank: int = 1) -> Schedule:
    """Make ZB-H2: no bubble between a rank's first and last action, for almost twice the memory of 1F1B.

    Every rank holds at most ``2p - 1`` microbatches: rank ``r`` warms up with ``2(p - r) - 1`` forwards and
    lags by ``2r`` weight gradients. Where ``f = i = w`` and ``m >= 2p - 1``, ranks start and end one action
    after each other and never idle in between, so that successive steps join without a bubble if the
    optimizer waits for no other rank (section 4 of the paper).
    """
    p, m = num_ranks, num_microbatches
    require_counts(p, m, num_stages_per_rank)
    require_stages_per_rank("zero_bubble_h2", num_stages_per_rank, 1)
    actions = tuple(_split_1f1b(rank, m, num_warmup=2 * (p - rank) - 1, lag=2 * rank) for rank in range(p))
    return Schedule("zero_bubble_h2", p, m, actions)


def zb_v(num_ranks: int, num_microbatches: int, num_stages_per_rank: int = 2) -> Schedule:
    """Make ZB-V: no bubble between a rank's first and last action, with the peak memory of 1F1B.

    Rank ``r`` owns stages ``r`` and ``2p - 1 - r``, so that a microbatch goes down the ranks and comes back
    up: rank 0 has the first and the last stage. Every rank holds at most ``2p`` (stage, microbatch) pairs, of
    half the size of 1F1B's. Where ``f = i = w`` and ``m >= 2p - 1`` no rank idles in between.
    """
    p, m = num_ranks, num_microbatches
    require_counts(p, m, num_stages_per_rank)
    require_stages_per_rank("zb_v", num_stages_per_rank, 2)
    actions = tuple(_zb_v_rank(p, m, rank) for rank in range(p))
    return Schedule("zb_v", 2 * p, m, actions)


def _split_1f1b(stage: int, m: int, num_warmup: int, lag: int) -> tuple[Action, ...]:
    """1F1B with the split backward: W of a microbatch follows the I of the one `lag` after it."""
    actions = [Action("F", stage, k) for k in range(min(num_warmup, m))]
    for k in range(m):
        actions.append(Action("I", stage, k))
        if k >= lag:
            actions.append(Action("W", stage, k - lag))
        if num_warmup + k < m:
            actions.append(Action("F", stage, num_warmup + k))
    actions.extend(Action("W", stage, k) for k in range(max(0, m - lag), m))
    return tuple(actions)


def _zb_v_rank(p: int, m: int, rank: int) -> tuple[Action, ...]:
    """Phases of one rank; ``f0`` is the forward on the way down the ranks, ``f1`` on the way back up.

    The phases need ``2p - 1`` microbatches to fill the pipeline; with fewer, the actions of those that do not
    exist are left out, which takes nothing away that another action needs.
    """
    f0, i0, w0 = _split_kinds(stage=rank)
    f1, i1, w1 = _split_kinds(stage=2 * p - 1 - rank)
    num_steady = max(m, 2 * p - 1) - (2 * p - 1) + rank
    phases = (
        [f0] * (2 * (p - rank) - 1),
        [f1, f0] * rank,
        [f1, i1, w1] * (p - rank),
        [f0, i0, w0, f1, i1, w1] * num_steady,
        # The forwards of the way down are over.
        [i0, w0, f1, i1, w1] * (p - 1 - rank),
        # Input gradients first: other ranks wait for them, and none for weight gradients.
        [i0, i1] * rank,
        [i0, w0] * (p - rank),
        [w1] * rank,
        [w0] * rank,
    )
    count: Counter[tuple[Kind, int]] = Counter()
    actions = []
    for kind, stage in chain.from_iterable(phases):
        if count[kind, stage] < m:
            actions.append(Action(kind, stage, count[kind, stage]))
        count[kind, stage] += 1
    return tuple(actions)


def _split_kinds(stage: int) -> tuple[tuple[Kind, int], tuple[Kind, int], tuple[Kind, int]]:
    return ("F", stage), ("I", stage), ("W", stage)
