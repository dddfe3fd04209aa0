"""A schedule in time: when each action runs, how long ranks idle, how many microbatches they hold."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from trainyard.job.schedule import Action, Kind, Schedule
from trainyard.job.schedules.checking import check_counts, run_in_order
from trainyard.reading.arguments import WrongValueError


@dataclass(frozen=True, slots=True)
class DryRun:
    """Times and costs of every action of a schedule; per-rank tuples have one entry per rank.

    Attributes
    ----------
    start_s, end_s : tuple of tuple of float
        Times of the actions, in seconds from the start of the step, in the layout of `Schedule.actions`.
    makespan_s : float
        End of the last action of any rank.
    busy_s : tuple of float
        Seconds in which the rank computes.
    idle_s : tuple of float
        Seconds between the rank's first start and last end in which it computes nothing.
    bubble_fraction : tuple of float
        Share of the makespan in which the rank computes nothing, waiting before its first action and after
        its last one included; 0 where the makespan is 0.
    peak_in_flight : tuple of int
        Most (stage, microbatch) pairs of the rank past their F and before the end of their B, or W: those of
        which something is held in memory.
    peak_awaiting_backward : tuple of int
        The same, but up to the end of B or I: those of which everything is held. Between I and W only what
        the weight gradients need is.
    """

    start_s: tuple[tuple[float, ...], ...]
    end_s: tuple[tuple[float, ...], ...]
    makespan_s: float
    busy_s: tuple[float, ...]
    idle_s: tuple[float, ...]
    bubble_fraction: tuple[float, ...]
    peak_in_flight: tuple[int, ...]
    peak_awaiting_backward: tuple[int, ...]


def dry_run(
    schedule: Schedule,
    seconds: Mapping[Kind, float] | Callable[[Action], float],
    send_s: float = 0.0,
) -> DryRun:
    """Evaluate a schedule in time: ranks run their lists in order, each action once its inputs are there.

    Parameters
    ----------
    schedule : Schedule
    seconds : mapping from kind to seconds, or function of an action
        How long an action takes, in seconds. Updates take none where the mapping does not say it.
    send_s : float
        Seconds from the end of an action until another rank can use its result; a send keeps no rank busy and
        never waits for another. Within a rank it is 0.

    Returns
    -------
    DryRun

    Raises
    ------
    ScheduleError
        When `check` would refuse the schedule.
    WrongValueError
        When a duration is missing, negative or not finite.
    """
    check_counts(schedule)
    start_s, end_s = run_in_order(schedule, _seconds_of(seconds), _duration(send_s, "a send"))
    makespan_s = max(ends[-1] for ends in end_s)
    busy_s = tuple(
        math.fsum(e - s for s, e in zip(starts, ends, strict=True))
        for starts, ends in zip(start_s, end_s, strict=True)
    )
    # Idle time is a sum of gaps, so that back-to-back actions give exactly 0 whatever the rounding.
    idle_s = tuple(
        math.fsum(s - e for s, e in zip(starts[1:], ends[:-1], strict=True))
        for starts, ends in zip(start_s, end_s, strict=True)
    )
    return DryRun(
        start_s=start_s,
        end_s=end_s,
        makespan_s=makespan_s,
        busy_s=busy_s,
        idle_s=idle_s,
        bubble_fraction=tuple(1.0 - busy / makespan_s if makespan_s > 0 else 0.0 for busy in busy_s),
        peak_in_flight=tuple(_peak(actions, ("B", "W")) for actions in schedule.actions),
        peak_awaiting_backward=peak_awaiting_backward(schedule),
    )


def peak_awaiting_backward(schedule: Schedule) -> tuple[int, ...]:
    """`DryRun.peak_awaiting_backward` alone, which needs no times: a rank runs its list in order."""
    return tuple(_peak(actions, ("B", "I")) for actions in schedule.actions)


def _seconds_of(seconds: Mapping[Kind, float] | Callable[[Action], float]) -> Callable[[Action], float]:
    """One function of an action for both ways of giving durations, which refuses what is no duration."""
    if not isinstance(seconds, Mapping):
        return lambda action: _duration(seconds(action), str(action))
    by_kind = {"U": 0.0} | {kind: _duration(value, kind) for kind, value in seconds.items()}

    def look_up(action: Action) -> float:
        if action.kind not in by_kind:
            raise WrongValueError(
                f"{action} has kind {action.kind!r}, but seconds are given only for {sorted(seconds)}; add it"
            )
        return by_kind[action.kind]

    return look_up


def _duration(value_s: float, what: str) -> float:
    if not (math.isfinite(value_s) and value_s >= 0):
        raise WrongValueError(f"{what} must take a finite number of seconds, 0 or more; got {value_s}")
    return float(value_s)


def _peak(actions: tuple[Action, ...], releasing: tuple[Kind, ...]) -> int:
    """Most forwards not yet released."""
    held = peak = 0
    for action in actions:
        held += (action.kind == "F") - (action.kind in releasing)
        peak = max(peak, held)
    return peak
