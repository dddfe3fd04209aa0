"""Demotions and promotions of jobs between the queues of Tiresias, the jobs that run, and the time of the next move."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from trainyard.compiling import compiled, lean
from trainyard.fleet.compiled_policy import all_held, facts, mark_of, serials
from trainyard.fleet.place.find import pool_for
from trainyard.fleet.policies.tiresias.queue_order import carried_over, merged_order
from trainyard.fleet.snapshot import (
    ALLOWED,
    ATTAINED_DEVICE_S,
    ATTAINED_S,
    FIRST_START_S,
    HELD,
    NUM_DEVICES,
    Floats,
    Ints,
)

# Service is a sum of floats: a job this near to a threshold (device-seconds) has reached it.
NEAR_S = 1e-4
# A demotion that rounding would put off for ever is looked for at the latest after this.
LEAST_WAIT_S = 1e-3

# What is known of a job, a row for each. The first three make its place, the smallest first.
(
    QUEUE,  # from 0, the top queue
    INDEX,  # Gittins, negative; 0 without
    RANK,  # within the queue
    GANG,  # devices that it asks for
    ALLOWED_TYPES,  # types that it can run on, as bits
    CONSOLIDATE,  # as `Queue.consolidate`
    SERVICE,  # attained since the last promotion
    # Only where jobs may be promoted (PromoteKnob):
    RAN_S,  # since the last promotion
    _RAN_BEFORE_S,  # until then
    _SERVICE_BEFORE,  # attained until then
    BEGAN_S,  # when it began to run after it; NaN before
    _PROMOTION_S,  # when it is promoted next if it does not run until then
) = range(12)


class Queues(NamedTuple):
    """The jobs of the last decision, numbered as in its snapshot.

    Attributes
    ----------
    serial : which they are.
    jobs : what is known of them, a row for each thing.
    order : their numbers, most urgent first.
    fitting : numbers of those that were to run, and fit by number.
    held, room : devices that each had then, and those of every type.
    is_one_pool : whether all jobs can have all devices.
    """

    serial: Ints
    jobs: Floats
    order: Ints
    fitting: Ints
    held: Ints
    room: Ints
    is_one_pool: bool


def no_jobs(may_promote: bool) -> Floats:
    """Return the table of jobs before the first one arrives.

    Parameters
    ----------
    may_promote : whether jobs that wait for long are promoted.
    """
    return np.zeros((_PROMOTION_S + 1 if may_promote else RAN_S, 0))


@compiled
def decide(all_rules, queues, seen):  # type: ignore[no-untyped-def]
    """A decision where ranks make the order, as `CompiledPolicy.decide`; a job's mark is its `CONSOLIDATE`."""
    places, rules = all_rules
    serial, held = serials(seen), all_held(seen)
    jobs, renumbered, numbers, num_known = still_there(
        queues.serial, queues.jobs, queues.fitting, serial, held, seen.now_s, False
    )
    for number in range(num_known, len(serial)):
        jobs[CONSOLIDATE, number] = mark_of(seen, number)
    order, fitting, _, wait_s = next_order(
        jobs, numbers, renumbered, queues, serial, seen.room, seen.now_s, facts(seen, numbers), held, *rules
    )
    consolidate = jobs[CONSOLIDATE][order] if places else np.zeros(0)
    return (
        order,
        consolidate,
        seen.now_s + wait_s,
        Queues(serial, jobs, order, fitting, held, seen.room, queues.is_one_pool),
    )


@compiled
def still_there(before, known, fitting, serial, held, now_s, all_may_move):  # type: ignore[no-untyped-def]
    """Return the facts of the jobs that are there now, from the last decision.

    Parameters
    ----------
    held : devices of every job now.
    all_may_move : whether those may move that neither ran, nor are new, nor have waited for long enough.

    Returns
    -------
    What is known; the number now of every job of that decision, -1 if it left; the numbers of the jobs that may move;
    and how many are not new, which are the first.
    """
    jobs, renumbered, num_known = carried_over(before, known, serial)
    jobs[:, num_known:] = 0.0
    jobs[RANK, num_known:] = jobs[BEGAN_S:, num_known:] = np.nan
    if all_may_move:
        return jobs, renumbered, np.arange(len(serial)), num_known
    may_move = held > 0
    may_move[num_known:] = True
    for number in renumbered[fitting]:
        if number >= 0:
            may_move[number] = True
    if len(jobs) > _PROMOTION_S:
        may_move |= jobs[_PROMOTION_S] <= now_s + NEAR_S
    return jobs, renumbered, np.flatnonzero(may_move), num_known


@compiled
def next_order(jobs, numbers, renumbered, queues, serial, room, now_s, seen, held, *rules):  # type: ignore[no-untyped-def]
    """The order by ranks, and what `next_move` finds: one compiled call takes less time than one for each step.

    Parameters
    ----------
    queues : of the last decision; ``renumbered`` says how its jobs are numbered now.
    seen, rules : as for `requeue`.
    """
    moved = requeue(jobs, numbers, now_s, seen, *rules)
    order = merged_order(queues.order, renumbered, moved, jobs[QUEUE : RANK + 1])
    as_before = is_as_before(queues, serial, order, held, room)
    return order, *next_move(order, jobs, room, now_s, held, as_before, queues.is_one_pool, *rules)


@compiled
def requeue(jobs, numbers, now_s, seen, *rules):  # type: ignore[no-untyped-def]
    """Note the service of some jobs, demote and promote them, and return the numbers of those whose place changed.

    Parameters
    ----------
    seen : of the jobs with these numbers, what `Snapshot.facts` says.
    rules : thresholds, the last infinite; PromoteKnob; whether service counts devices.
    """
    moved = np.empty(len(numbers), np.int64)
    return moved[: _requeue(jobs, numbers, now_s, seen, moved, *rules)]


@lean
def _requeue(jobs, numbers, now_s, seen, moved, thresholds, knob, two_dimensional):  # type: ignore[no-untyped-def]
    """Do as `requeue`, with the numbers written into ``moved``; return how many they are."""
    held, attained_s, start_s = seen[HELD], seen[ATTAINED_S], seen[FIRST_START_S]
    attained = seen[ATTAINED_DEVICE_S if two_dimensional else ATTAINED_S]
    num_moved, may_promote = 0, len(jobs) > _PROMOTION_S
    for i in range(len(numbers)):
        job = jobs[:, numbers[i]]
        former_queue, former_rank = job[QUEUE], job[RANK]
        job[GANG], job[ALLOWED_TYPES] = seen[NUM_DEVICES, i], seen[ALLOWED, i]
        note_service(job, may_promote, now_s, held[i] > 0, attained_s[i], attained[i])
        # One that waits may have lost its devices after it reached a threshold.
        while job[SERVICE] + NEAR_S >= thresholds[int(job[QUEUE])]:
            job[QUEUE] += 1
        if held[i] == 0 and knob < np.inf and job[QUEUE] > 0:
            promote(job, now_s, attained_s[i], attained[i], knob * job[RAN_S])
        if may_promote:
            job[_PROMOTION_S] = job[BEGAN_S] + (1.0 + knob) * job[RAN_S] if job[QUEUE] > 0 else np.inf
        job[RANK] = np.inf if np.isnan(start_s[i]) else start_s[i]
        if job[QUEUE] != former_queue or job[RANK] != former_rank:
            moved[num_moved] = numbers[i]
            num_moved += 1
    return num_moved


@lean
def note_service(job, may_promote, now_s, is_held, attained_s, attained):  # type: ignore[no-untyped-def]
    """Note what a job attained, in all and since its last promotion."""
    job[SERVICE] = attained
    if may_promote:
        job[SERVICE] -= job[_SERVICE_BEFORE]
        job[RAN_S] = attained_s - job[_RAN_BEFORE_S]
        if np.isnan(job[BEGAN_S]) and (is_held or job[RAN_S] > 0):
            job[BEGAN_S] = now_s - job[RAN_S]


@lean
def promote(job, now_s, attained_s, attained, limit_s):  # type: ignore[no-untyped-def]
    """Move a job that waited for so long to the top queue, as if it had neither run nor waited."""
    if now_s - job[BEGAN_S] - job[RAN_S] + NEAR_S >= limit_s:
        job[_RAN_BEFORE_S], job[_SERVICE_BEFORE], job[BEGAN_S] = attained_s, attained, np.nan
        job[QUEUE] = job[RAN_S] = job[SERVICE] = 0.0


@compiled
def is_as_before(queues, serial, order, held, room):  # type: ignore[no-untyped-def]
    """Whether all is as it was at the last decision, which then changed nothing, and neither will this one."""
    same = _are_equal(queues.serial, serial) and _are_equal(queues.held, held)
    return same and _are_equal(queues.order, order) and _are_equal(queues.room, room)


@lean
def _are_equal(one, other):  # type: ignore[no-untyped-def]
    if len(one) != len(other):
        return False
    for i in range(len(one)):  # noqa: SIM110  (nothing else is as fast when compiled)
        if one[i] != other[i]:
            return False
    return True


@compiled
def next_move(  # type: ignore[no-untyped-def]
    order, jobs, room, now_s, held, as_before, is_one_pool, thresholds, knob, two_dimensional
):
    """Find the jobs that fit by number of devices, whether each job waits, and when the next job may change its queue.

    Parameters
    ----------
    room : devices of every type.
    held : devices of every job.
    as_before : what `is_as_before` says.
    is_one_pool : as `Queues` has it.
    """
    fitting, waits = fit(order, jobs, room)
    wait_s = np.inf  # where nobody waits, no move changes who runs
    if len(fitting) < len(order) or (held == 0).any():
        # Who fits by number may find no place, and who does not may have what that one leaves.
        runs, may_wait = np.flatnonzero(held), held == 0
        if not as_before:
            runs, may_wait = _may_run(fitting, jobs, held, room, is_one_pool), waits | may_wait
        wait_s = _next_move_s(jobs, now_s, runs, may_wait, thresholds, knob, two_dimensional)
    return fitting, waits, wait_s


@compiled
def fit(order, jobs, room):  # type: ignore[no-untyped-def]
    """Find the jobs that run, most urgent first, and whether each job waits."""
    left, total = room.copy(), room.sum()
    fitting, num = np.empty(len(order), np.int64), 0
    waits = np.ones(len(order), np.bool_)
    for number in order:
        if total == 0:
            break
        gang = int(jobs[GANG, number])
        pool = pool_for(left, gang, -1, int(jobs[ALLOWED_TYPES, number]))
        if pool >= 0:
            left[pool] -= gang
            total -= gang
            fitting[num], waits[number] = number, False
            num += 1
    return fitting[:num].copy(), waits


@compiled
def _may_run(fitting, jobs, held, room, is_one_pool):  # type: ignore[no-untyped-def]
    """List jobs that may run: fitting ones, running ones, and those that could use devices left idle."""
    if not is_one_pool:  # by number, jobs may be counted on devices that they do not get
        return np.flatnonzero(jobs[GANG] <= room.max())
    runs, most, all_keep = held > 0, room.sum(), True
    for number in fitting:
        runs[number] = True
        all_keep &= held[number] > 0
        if all_keep:  # who comes after one that gets devices may lose its own to it
            most -= int(jobs[GANG, number])
    if not all_keep:
        runs |= jobs[GANG] <= most
    return np.flatnonzero(runs)


@compiled
def _next_move_s(jobs, now_s, runs, waits, thresholds, knob, two_dimensional):  # type: ignore[no-untyped-def]
    """Time until a job goes to another queue, if these run on."""
    best_s = np.inf
    for number in runs:
        rate = jobs[GANG, number] if two_dimensional else 1.0
        wait_s = (thresholds[int(jobs[QUEUE, number])] - jobs[SERVICE, number]) / rate
        best_s = min(best_s, max(wait_s, LEAST_WAIT_S))
    if knob == np.inf:
        return best_s
    return min(best_s, max(_first_of(jobs[_PROMOTION_S], waits) - now_s, LEAST_WAIT_S))


@lean
def _first_of(times_s, counts):  # type: ignore[no-untyped-def]
    """The first of those times that count."""
    first_s = np.inf
    for number in range(len(times_s)):
        if counts[number] and times_s[number] < first_s:
            first_s = times_s[number]
    return first_s
