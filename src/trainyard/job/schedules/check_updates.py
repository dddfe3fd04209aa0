"""Check the updates of a schedule, and the ranks that share a stage."""

from __future__ import annotations

from trainyard.job.schedule import Action, Schedule, ScheduleError


def check_replicas(schedule: Schedule) -> None:
    """Refuse ranks that divide the passes of one microbatch, or that share a stage and cannot take turns in it.

    Raises
    ------
    ScheduleError
        Names the first action at fault, and why.
    """
    passes = [(rank, a) for rank, actions in enumerate(schedule.actions) for a in actions if a.kind != "U"]
    forward_of = {(a.stage, a.microbatch): rank for rank, a in passes if a.kind == "F"}
    for rank, action in passes:
        forward = forward_of[action.stage, action.microbatch]
        if forward != rank:
            raise ScheduleError(
                action,
                f"on rank {rank}, but {action.stage}F{action.microbatch} is on rank {forward}; both are on one",
            )
    for stage in range(schedule.num_stages):
        _check_ranks_of(schedule, stage)


def _check_ranks_of(schedule: Schedule, stage: int) -> None:
    """Several ranks of one stage have no other, and update it equally often."""
    ranks = schedule.ranks_of(stage)
    if len(ranks) == 1:
        return
    update = Action("U", stage)
    counts = {rank: schedule.actions[rank].count(update) for rank in ranks}
    for rank in ranks:
        others = [s for s in schedule.stages_of(rank) if s != stage]
        if others:
            raise ScheduleError(
                None,
                f"rank {rank} has stages {stage} and {others[0]}, and stage {stage} is on ranks "
                f"{', '.join(map(str, ranks))}; a rank that shares a stage with others has only that",
            )
        if counts[rank] != counts[ranks[0]]:
            raise ScheduleError(
                update,
                f"{counts[ranks[0]]} times on rank {ranks[0]} and {counts[rank]} times on rank {rank}; the ranks of a "
                "stage update it together",
            )


def check_updates(schedule: Schedule) -> None:
    """Refuse gradients that no update applies, or that one applies in part; and updates without gradients.

    Raises
    ------
    ScheduleError
        Names the first action at fault, and why.
    """
    for rank, actions in enumerate(schedule.actions):
        # Backward passes by stage whose gradients are to be applied, and halves of which the other is missing.
        pending: dict[int, list[Action]] = {}
        halves: dict[int, dict[int, Action]] = {}
        for action in actions:
            stage = action.stage
            if action.kind == "I":
                halves.setdefault(stage, {})[action.microbatch] = action
            elif action.kind in ("B", "W"):
                halves.setdefault(stage, {}).pop(action.microbatch, None)
                pending.setdefault(stage, []).append(action)
            elif action.kind == "U":
                if half := next(iter(halves.get(stage, {}).values()), None):
                    raise ScheduleError(
                        action,
                        f"on rank {rank} between {half} and {stage}W{half.microbatch}; the gradients of a microbatch are "
                        "applied together",
                    )
                if not pending.pop(stage, None):
                    raise ScheduleError(
                        action, f"on rank {rank} without a backward pass of stage {stage} before it"
                    )
        for left in pending.values():
            raise ScheduleError(
                left[0],
                f"no update of stage {left[0].stage} follows on rank {rank}; its gradients are never applied",
            )
