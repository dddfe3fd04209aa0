"""Whether a schedule can be run (counts, dependencies, deadlock), and its run in the order of its lists."""

from __future__ import annotations

from collections.abc import Callable

from trainyard.job.schedule import KINDS, Action, Kind, Schedule, ScheduleError

# What an action makes: "F" an output, "G" the gradient of a stage's input, "W" the gradient of its weights.
_Result = tuple[str, int, int]
_RESULT_OF: dict[Kind, str] = {"F": "F", "B": "G", "I": "G", "W": "W"}


def check(schedule: Schedule) -> None:
    """Prove that a schedule trains every microbatch exactly once, in an order its ranks can run.

    Every stage lies on one rank; every (stage, microbatch) has one F and either one B, or one I and one W;
    F(s, k) follows F(s-1, k); B or I(s, k) follows F(s, k) and the B or I of (s+1, k); W(s, k) follows I(s,
    k); and the ranks, each running its list in order, all reach their ends.

    Raises
    ------
    ScheduleError
        Names the first action at fault, and why.
    """
    check_counts(schedule)
    run_in_order(schedule, lambda action: 0.0, 0.0)


def check_counts(schedule: Schedule) -> None:
    """Refuse what the set of actions alone shows: foreign, scattered, missing, double or contradictory ones.

    Raises
    ------
    ScheduleError
        Names the first action at fault, and why.
    """
    num_stages, num_microbatches = schedule.num_stages, schedule.num_microbatches
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
            if owner != rank:
                raise ScheduleError(action, f"on rank {rank}, but stage {action.stage} is on rank {owner}")
            if action in seen:
                raise ScheduleError(action, f"twice on rank {rank}; every action runs once")
            seen.add(action)
    for stage in range(num_stages):
        for k in range(num_microbatches):
            _check_pair(seen, stage, k)


def _check_pair(seen: set[Action], stage: int, microbatch: int) -> None:
    forward, full, inputs, weights = (Action(kind, stage, microbatch) for kind in KINDS)
    if forward not in seen:
        raise ScheduleError(forward, "missing; every stage runs every microbatch forward")
    if full in seen:
        for split in (inputs, weights):
            if split in seen:
                raise ScheduleError(split, f"as well as the full backward {full}; keep one or the other")
    elif inputs not in seen and weights not in seen:
        raise ScheduleError(full, f"missing, and so are {inputs} and {weights}; {forward} has no backward")
    else:
        for here, other in ((inputs, weights), (weights, inputs)):
            if here not in seen:
                raise ScheduleError(here, f"missing, but {other} is there; a split backward needs both")


def _needs(action: Action, num_stages: int) -> tuple[_Result, ...]:
    """Results that must be there before the action starts."""
    s, k = action.stage, action.microbatch
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
    while ready:
        rank = ready.pop()
        actions = schedule.actions[rank]
        while len(ends[rank]) < len(actions):
            action = actions[len(ends[rank])]
            needs = _needs(action, schedule.num_stages)
            missing = next((need for need in needs if need not in done), None)
            if missing is not None:
                waiting.setdefault(missing, []).append(rank)
                break
            begin_s = ends[rank][-1] if ends[rank] else 0.0
            for maker, made_s in (done[need] for need in needs):
                begin_s = max(begin_s, made_s + (send_s if maker != rank else 0.0))
            starts[rank].append(begin_s)
            ends[rank].append(begin_s + seconds(action))
            result = (_RESULT_OF[action.kind], action.stage, action.microbatch)
            done[result] = (rank, ends[rank][-1])
            ready.extend(waiting.pop(result, ()))
    _refuse_blocked(schedule, [len(e) for e in ends], waiting)
    return tuple(map(tuple, starts)), tuple(map(tuple, ends))


def _refuse_blocked(schedule: Schedule, num_done: list[int], waiting: dict[_Result, list[int]]) -> None:
    """Raise when ranks wait for ever; prefer to name one that waits for a later action of its own list."""
    blocked = []
    for (made, stage, k), ranks in waiting.items():
        kinds = [kind for kind in KINDS if _RESULT_OF[kind] == made]
        for rank in ranks:
            here, *later = schedule.actions[rank][num_done[rank] :]
            own = next((a for a in later if a.kind in kinds and (a.stage, a.microbatch) == (stage, k)), None)
            awaited = own or f"{stage}{'/'.join(kinds)}{k}"
            blocked.append((own is None, rank, here, awaited))
    if not blocked:
        return
    elsewhere, rank, here, awaited = min(blocked, key=lambda entry: entry[:2])
    if not elsewhere:
        raise ScheduleError(here, f"runs on rank {rank} before {awaited}, whose result it needs")
    ring = ", ".join(f"rank {r} at {a} for {w}" for _, r, a, w in sorted(blocked, key=lambda e: e[1]))
    raise ScheduleError(here, f"never starts; ranks wait for each other: {ring}")
