"""Check that a schedule can be run (counts, dependencies, deadlock), and run it in the order of its lists."""

from __future__ import annotations

from collections.abc import Callable

from trainyard.job.schedule import KINDS, PASSES, Action, Kind, Schedule, ScheduleError
from trainyard.job.schedules.check_updates import check_replicas, check_updates

# What an action makes: "F" an output, "G" the gradient of a stage's input, "W" the gradient of its weights. "U" is that
# a rank has come to an update, for which the other ranks of the stage wait; its number has the place of the microbatch.
_Result = tuple[str, int, int]
_RESULT_OF: dict[Kind, str] = {"F": "F", "B": "G", "I": "G", "W": "W", "U": "U"}


def check(schedule: Schedule, *, trains: bool = True) -> None:
    """Prove that a schedule trains every microbatch exactly once, in an order its ranks can run.

    Every stage lies on one rank; every (stage, microbatch) has one F and either one B, or one I and one W;
    F(s, k) follows F(s-1, k); B or I(s, k) follows F(s, k) and the B or I of (s+1, k); W(s, k) follows I(s,
    k); and the ranks, each running its list in order, all reach their ends. Where there are updates, every backward
    pass is followed by one; and a stage may lie on several ranks that have no other stage and equally many updates.

    Parameters
    ----------
    trains : whether there must be backward passes; a schedule that serves has none.

    Raises
    ------
    ScheduleError
        Names the first action at fault, and why.
    """
    check_counts(schedule, trains=trains)
    run_in_order(schedule, lambda action: 0.0, 0.0)


def check_counts(schedule: Schedule, *, trains: bool = True) -> None:
    """Refuse what the set of actions alone shows: foreign, scattered, missing, double or contradictory ones.

    Parameters
    ----------
    trains : as of `check`.

    Raises
    ------
    ScheduleError
        Names the first action at fault, and why.
    """
    num_stages, num_microbatches = schedule.num_stages, schedule.num_microbatches
    has_updates = schedule.has_updates
    rank_of: dict[int, int] = {}
    seen: set[Action] = set()
    for rank, actions in enumerate(schedule.actions):
        if not actions:
            raise ScheduleError(None, f"rank {rank} has nothing to run; every rank owns at least one stage")
        for action in actions:
            if action.stage >= num_stages or action.microbatch >= num_microbatches:
                raise ScheduleError(
                    action,
                    f"outside the schedule's {num_stages} stages and {num_microbatches} microbatches",
                )
            owner = rank_of.setdefault(action.stage, rank)
            if owner != rank and not has_updates:
                raise ScheduleError(
                    action,
                    f"on rank {rank}, but stage {action.stage} is on rank {owner}; several ranks have actions of one "
                    f"stage only where the list has its updates, {action.stage}U",
                )
            if action in seen and action.kind != "U":
                raise ScheduleError(action, f"twice on rank {rank}; every action runs once")
            seen.add(action)
    for stage in range(num_stages):
        for k in range(num_microbatches):
            _check_pair(seen, stage, k, trains)
    if has_updates:
        check_replicas(schedule)
        check_updates(schedule)


def _check_pair(seen: set[Action], stage: int, microbatch: int, trains: bool) -> None:
    forward, full, inputs, weights = (Action(kind, stage, microbatch) for kind in PASSES)
    if forward not in seen:
        raise ScheduleError(forward, "missing; every stage runs every microbatch forward")
    if full in seen:
        for split in (inputs, weights):
            if split in seen:
                raise ScheduleError(split, f"as well as the full backward {full}; keep one or the other")
    elif inputs not in seen and weights not in seen:
        if trains:
            raise ScheduleError(
                full, f"missing, and so are {inputs} and {weights}; {forward} has no backward"
            )
    else:
        for here, other in ((inputs, weights), (weights, inputs)):
            if here not in seen:
                raise ScheduleError(here, f"missing, but {other} is there; a split backward needs both")


def _needs(action: Action, num_stages: int) -> tuple[_Result, ...]:
    """Results that must be there before the action starts."""
    s, k = action.stage, action.microbatch
    if action.kind == "U":
        return ()
    if action.kind == "F":
        return (("F", s - 1, k),) if s > 0 else ()
    if action.kind == "W":
        return (("G", s, k),)
    return (("F", s, k), ("G", s + 1, k)) if s + 1 < num_stages else (("F", s, k),)


def run_in_order(
    schedule: Schedule, seconds: Callable[[Action], float], send_s: float
) -> tuple[tuple[tuple[float, ...], ...], tuple[tuple[float, ...], ...]]:
    """Run each rank's list in order, each action as soon as its inputs are there.

    Parameters
    ----------
    schedule : Schedule
        One that `check_counts` accepts.
    seconds : function of an action
        How long it takes, in seconds.
    send_s : float
        Seconds until another rank can use a result.

    Returns
    -------
    starts, ends : tuple of tuple of float
        Times in seconds, in the layout of `Schedule.actions`.

    Raises
    ------
    ScheduleError
        When ranks wait for each other for ever.
    """
    # A rank stops at the first action whose inputs are missing and is woken by the action that makes them, so
    # the order in which ranks are visited does not change the times.
    done: dict[_Result, tuple[int, float]] = {}
    waiting: dict[_Result, list[int]] = {}
    starts: list[list[float]] = [[] for _ in schedule.actions]
    ends: list[list[float]] = [[] for _ in schedule.actions]
    ready = list(range(schedule.num_ranks))
    updates = _JointUpdates(schedule)
    while ready:
        rank = ready.pop()
        actions = schedule.actions[rank]
        while len(ends[rank]) < len(actions):
            action = actions[len(ends[rank])]
            needs = _needs(action, schedule.num_stages)
            if action.kind == "U":
                own, needs = updates.at(rank, action.stage)
                done.setdefault(own, (rank, ends[rank][-1]))
                ready.extend(waiting.pop(own, ()))
            missing = next((need for need in needs if need not in done), None)
            if missing is not None:
                waiting.setdefault(missing, []).append(rank)
                break
            begin_s = ends[rank][-1] if ends[rank] else 0.0
            for maker, made_s in (done[need] for need in needs):
                begin_s = max(begin_s, made_s + (send_s if maker != rank else 0.0))
            starts[rank].append(begin_s)
            ends[rank].append(begin_s + seconds(action))
            if action.kind == "U":
                updates.num_done[rank] += 1
                continue
            result = (_RESULT_OF[action.kind], action.stage, action.microbatch)
            done[result] = (rank, ends[rank][-1])
            ready.extend(waiting.pop(result, ()))
    _refuse_blocked(schedule, [len(e) for e in ends], waiting)
    return tuple(map(tuple, starts)), tuple(map(tuple, ends))


class _JointUpdates:
    """Updates of stages that several ranks have, which none of them runs before all have come to it."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        # Of a rank with replicas, which has one stage.
        self.num_done = [0] * schedule.num_ranks

    def at(self, rank: int, stage: int) -> tuple[_Result, tuple[_Result, ...]]:
        """Return what the next update of a rank makes, and what has to be there before it runs."""
        ranks = self.schedule.ranks_of(stage)
        met = {r: ("U", stage, self.num_done[rank] * len(ranks) + i) for i, r in enumerate(ranks)}
        return met.pop(rank), tuple(met.values()) if len(ranks) > 1 else ()


def _refuse_blocked(schedule: Schedule, num_done: list[int], waiting: dict[_Result, list[int]]) -> None:
    """Raise when ranks wait for ever; prefer to name one that waits for a later action of its own list."""
    blocked = []
    for (made, stage, k), ranks in waiting.items():
        kinds = [kind for kind in KINDS if _RESULT_OF[kind] == made]
        for rank in ranks:
            here, *later = schedule.actions[rank][num_done[rank] :]
            own = next((a for a in later if a.kind in kinds and (a.stage, a.microbatch) == (stage, k)), None)
            awaited = own or (f"{stage}U of other ranks" if made == "U" else f"{stage}{'/'.join(kinds)}{k}")
            blocked.append((own is None, rank, here, awaited))
    if not blocked:
        return
    elsewhere, rank, here, awaited = min(blocked, key=lambda entry: entry[:2])
    if not elsewhere:
        raise ScheduleError(here, f"runs on rank {rank} before {awaited}, whose result it needs")
    ring = ", ".join(f"rank {r} at {a} for {w}" for _, r, a, w in sorted(blocked, key=lambda e: e[1]))
    raise ScheduleError(here, f"never starts; ranks wait for each other: {ring}")
