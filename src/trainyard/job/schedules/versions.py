"""Versions of the weights: what follows from the updates of a schedule.

Each update makes a new version of the weights of its stage. The backward pass of a microbatch uses the version that its
forward pass has used, so a version is held until the last of these is done (weight stashing: Narayanan et al.,
PipeDream, SOSP 2019, section 3.3). All of this is for schedules that `check` accepts.
"""

from __future__ import annotations

from collections import Counter
from itertools import groupby
from typing import NamedTuple

from trainyard.job.schedule import Action, Schedule


class WeightUse(NamedTuple):
    """The use of a stage's weights by an action.

    Attributes
    ----------
    version : of the weights that it reads, from 0; an update reads one and makes the next.
    is_last : whether no later action of this pipeline rank reads that version. Then a backward pass lets go of it, and
        an update overwrites it.
    num_own, num_applied : microbatches whose gradients the update applies that comes next, of this pipeline rank and of
        all that run the stage. Of a forward pass they mean nothing.
    """

    version: int
    is_last: bool
    num_own: int
    num_applied: int


def weight_uses(schedule: Schedule) -> tuple[tuple[WeightUse, ...], ...]:
    """The use of every action, in the layout of `Schedule.actions`."""
    if not schedule.has_updates:
        # The only version, which is updated after the last action.
        use = WeightUse(0, False, schedule.num_microbatches, schedule.num_microbatches)
        return tuple((use,) * len(actions) for actions in schedule.actions)
    sizes = [_update_sizes(actions) for actions in schedule.actions]
    total: Counter[tuple[int, int]] = Counter()
    for own in sizes:
        total.update(own)
    return tuple(
        _uses_of_rank(actions, own, total) for actions, own in zip(schedule.actions, sizes, strict=True)
    )


def _update_sizes(actions: tuple[Action, ...]) -> Counter[tuple[int, int]]:
    """Microbatches of each update of a rank, by its stage and its number in that stage."""
    found: Counter[tuple[int, int]] = Counter()
    num_done: Counter[int] = Counter()
    for action in actions:
        if action.kind == "U":
            num_done[action.stage] += 1
        elif action.kind in ("B", "W"):
            found[action.stage, num_done[action.stage]] += 1
    return found


def _uses_of_rank(
    actions: tuple[Action, ...], sizes: Counter[tuple[int, int]], total: Counter[tuple[int, int]]
) -> tuple[WeightUse, ...]:
    num_done: Counter[int] = Counter()
    version_of: dict[tuple[int, int], int] = {}
    versions, updates = [], []
    for action in actions:
        stage, now = action.stage, num_done[action.stage]
        if action.kind == "F":
            version_of[stage, action.microbatch] = now
        versions.append(now if action.kind == "U" else version_of[stage, action.microbatch])
        updates.append((stage, now))
        num_done[stage] += action.kind == "U"
    last = {
        (action.stage, version): i for i, (action, version) in enumerate(zip(actions, versions, strict=True))
    }
    return tuple(
        WeightUse(version, last[action.stage, version] == i, sizes[update], total[update])
        for i, (action, version, update) in enumerate(zip(actions, versions, updates, strict=True))
    )


def num_versions(schedule: Schedule, rank: int, stage: int) -> int:
    """Most versions of a stage's weights that a rank holds at once: the newest, and what older microbatches need."""
    held = most = 1
    for action, use in zip(schedule.actions[rank], weight_uses(schedule)[rank], strict=True):
        if action.stage == stage and (action.kind == "U") != use.is_last:
            held += 1 if action.kind == "U" else -1
            most = max(most, held)
    return most


def staleness(schedule: Schedule, stage: int) -> int:
    """Most updates of a stage between the forward pass of a microbatch and the update that applies its gradient."""
    most = 0
    for actions, uses in zip(schedule.actions, weight_uses(schedule), strict=True):
        num_done = 0
        for action, use in zip(actions, uses, strict=True):
            if action.stage == stage and action.kind in ("B", "W"):
                most = max(most, num_done - use.version)
            num_done += action.stage == stage and action.kind == "U"
    return most


def is_one_step(schedule: Schedule) -> bool:
    """Return whether every stage is updated once, hence with the gradients of all microbatches."""
    updates = [a for actions in schedule.actions for a in actions if a.kind == "U"]
    num_holders = sum(len(schedule.ranks_of(stage)) for stage in range(schedule.num_stages))
    return not updates or len(updates) == num_holders


def explain_versions(schedule: Schedule) -> str:
    """Explain training under a schedule with updates, in sentences."""
    said = [
        "A step is a period of several updates, each by the mean gradient of the microbatches since the one before. A "
        "microbatch uses the same version of the weights in both passes."
    ]
    kinds = [_updates_of(schedule, stage) for stage in range(schedule.num_stages)]
    for kind, alike in groupby(range(schedule.num_stages), key=kinds.__getitem__):
        first, *others = alike
        said.append(f"Stages {first} to {others[-1]}: {kind}." if others else f"Stage {first}: {kind}.")
    return "\n".join(said)


def _updates_of(schedule: Schedule, stage: int) -> str:
    ranks = schedule.ranks_of(stage)
    count = schedule.actions[ranks[0]].count(Action("U", stage))
    if not (age := staleness(schedule, stage)):
        return f"{_counted(count)}, by gradients of the newest weights"
    most = max(num_versions(schedule, rank, stage) for rank in ranks)
    return f"{_counted(count)}, by gradients of weights up to {_counted(age)} old, of which {most} versions are kept"


def _counted(count: int) -> str:
    return "1 update" if count == 1 else f"{count} updates"
