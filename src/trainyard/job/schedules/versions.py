"""Versions of the weights: what follows from the updates of a schedule.

Each update makes a new version of the weights of its stage. The backward pass of a microbatch uses the version that its
forward pass has used, so a version is held until the last of these is done (weight stashing: Narayanan et al.,
PipeDream, SOSP 2019, section 3.3). All of this is for schedules that `check` accepts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from trainyard.job.schedule import Action, Schedule


class WeightUse(NamedTuple):
    """What an action has to do with the weights of its stage.

    Attributes
    ----------
    version : with which it computes, from 0; an update makes the next one of it.
    is_last : whether no later action of the rank uses that version: it is let go of after a backward pass, and an
        update is made in its place.
    num_own, num_applied : microbatches whose gradients are added up until the stage is updated with them, on this rank
        and on all of its ranks together. Of a forward pass they mean nothing.
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
    """Most updates that come between the weights of which a stage's gradients are and those that they are applied to."""
    most = 0
    for actions, uses in zip(schedule.actions, weight_uses(schedule), strict=True):
        num_done = 0
        for action, use in zip(actions, uses, strict=True):
            if action.stage == stage and action.kind in ("B", "W"):
                most = max(most, num_done - use.version)
            num_done += action.stage == stage and action.kind == "U"
    return most


def is_one_step(schedule: Schedule) -> bool:
    """Whether every stage is updated once, hence with the gradients of all microbatches."""
    updates = [a for actions in schedule.actions for a in actions if a.kind == "U"]
    num_holders = sum(len(schedule.ranks_of(stage)) for stage in range(schedule.num_stages))
    return not updates or len(updates) == num_holders


def explain_versions(schedule: Schedule) -> str:
    """What training under a schedule with updates means, in sentences."""
    stages = range(schedule.num_stages)
    counts = [schedule.actions[schedule.ranks_of(s)[0]].count(Action("U", s)) for s in stages]
    ages = [staleness(schedule, s) for s in stages]
    every = len(set(counts)) == 1
    updates = (
        f"{counts[0]} updates of every stage" if every else f"{_listed(counts)} updates of {_names(stages)}"
    )
    return (
        f"A step is a period of {updates}, each by the mean loss of the microbatches since the last one.\n"
        f"Weights of {_names(stages)} are up to {_listed(ages)} updates old when gradients are applied; each microbatch "
        "uses one version in both passes."
    )


def _names(stages: range) -> str:
    return "stage 0" if len(stages) == 1 else f"stages {_listed(stages)}"


def _listed(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, numbers))
