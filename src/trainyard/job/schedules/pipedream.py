"""PipeDream: 1F1B that never waits for a flush, since every microbatch is an optimizer step of its own.

References
----------
Narayanan et al., PipeDream: Generalized Pipeline Parallelism for DNN Training, SOSP 2019, sections 3.2 (1F1B) and 3.3
(weight stashing); Harlap et al., PipeDream: Fast and Efficient Pipeline Parallel DNN Training, arXiv 1806.03377.
"""

from __future__ import annotations

from trainyard.job.schedule import Action, Schedule
from trainyard.job.schedules.arguments import require_counts
from trainyard.job.schedules.one_f_one_b import one_f_one_b


def pipedream(num_ranks: int, num_microbatches: int, num_stages_per_rank: int = 1) -> Schedule:
    """Make PipeDream's schedule: that of 1F1B, with an update of a stage after each of its backward passes.

    The paper's minibatch is a microbatch here. In between, rank ``r`` has ``p - r`` minibatches in flight, as many
    versions of its weights, and applies gradients to weights that are ``p - 1 - r`` updates newer than those that they
    are of. The pipeline fills and drains once in ``m`` minibatches, where the paper's goes on. Vertical sync (section
    3.3), which the paper does not use either, is left out.
    """
    require_counts(num_ranks, num_microbatches, num_stages_per_rank, actions_per_microbatch=3)
    flushing = one_f_one_b(num_ranks, num_microbatches, num_stages_per_rank)
    actions = tuple(tuple(_with_updates(own)) for own in flushing.actions)
    return Schedule("pipedream", flushing.num_stages, num_microbatches, actions)


def _with_updates(actions: tuple[Action, ...]) -> list[Action]:
    found = []
    for action in actions:
        found.append(action)
        if action.kind == "B":
            found.append(Action("U", action.stage))
    return found
