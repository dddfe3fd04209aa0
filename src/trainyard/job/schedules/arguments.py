"""Checks of the arguments of schedule generators."""

from __future__ import annotations

from trainyard.job.schedule import MOST_ACTIONS
from trainyard.reading.arguments import WrongValueError


def require_counts(
    num_ranks: int, num_microbatches: int, num_stages_per_rank: int, actions_per_microbatch: int = 2
) -> None:
    """Refuse counts below 1, and such that make more actions than a schedule has.

    Raises
    ------
    WrongValueError
        Says which count, and what was given.
    """
    counts = {
        "num_ranks": num_ranks,
        "num_microbatches": num_microbatches,
        "num_stages_per_rank": num_stages_per_rank,
    }
    for what, count in counts.items():
        if count < 1:
            raise WrongValueError(f"{what} must be at least 1, got {count}")
    num_actions = actions_per_microbatch * num_ranks * num_stages_per_rank * num_microbatches
    if num_actions > MOST_ACTIONS:
        raise WrongValueError(
            f"{num_ranks} rank(s) with {num_stages_per_rank} stage(s) each and {num_microbatches} microbatches have "
            f"{num_actions:,} actions; at most {MOST_ACTIONS:,} are allowed, so take fewer microbatches"
        )


def require_stages_per_rank(name: str, given: int, allowed: int) -> None:
    """Refuse another number of stages per rank than the one a schedule is defined for.

    Raises
    ------
    WrongValueError
        Says what the schedule needs, and what takes other numbers.
    """
    if given != allowed:
        raise WrongValueError(
            f"{name} places {allowed} stage(s) on a rank, got num_stages_per_rank={given}; "
            f"pass {allowed}, or use 'interleaved' or 'breadth_first', which take any number"
        )
