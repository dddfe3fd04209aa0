"""Minimum satisfactory shares, reserved over time, and who gets the devices that these leave now.

Time is in slots from now and is cut into spans in which no reservation begins or ends. A job with a share has in every
span as many devices as its share and what is free allow; its minimum satisfactory share is the least with which it ends
by its deadline. What it reserved is free for others from the first slot after its end.

References
----------
D. Gu et al., "ElasticFlow: An Elastic Serverless Training Platform for Distributed Deep Learning", ASPLOS 2023,
algorithm 1 (progressive filling) and algorithm 2 (allocation by marginal return).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy import float64, int64
from numpy.typing import NDArray

from trainyard.compiling import compiled

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_END = -1


class Demands(NamedTuple):
    """What jobs need, in the order of their deadlines; a level is a number of devices that a job can have.

    Attributes
    ----------
    left : work to be done.
    deadline : in slots from now; infinite for a job without one.
    least : the level from which on shares are tried.
    num_levels : that every job has.
    num_devices : [job, level], ascending.
    work : [job, level], done in a slot; ascending.
    """

    left: Floats
    deadline: Floats
    least: Ints
    num_levels: Ints
    num_devices: Ints
    work: Floats


class _Spans(NamedTuple):
    """Spans of time, each linked to the one after it.

    Attributes
    ----------
    start : in slots from now.
    after : number of the next span; `_END` for the last.
    free : devices that nobody reserved.
    plan : [job, span], devices that it reserved.
    used : how many spans there are.
    """

    start: Floats
    after: Ints
    free: Ints
    plan: Ints
    used: Ints


def minimum_satisfactory_shares(demands: Demands, total: int, offset: float) -> Ints:
    """Levels of the minimum satisfactory shares; -1 for jobs that cannot end in time or have no deadline (algorithm 1).

    Parameters
    ----------
    total : devices.
    offset : part of the slot in which now lies that is over.
    """
    found: Ints = _minimum_satisfactory_shares(demands, _spans(demands, total, 0, offset), offset)
    return found


def elastic_allocation(demands: Demands, total: int, offset: float) -> tuple[Ints, float]:
    """Devices of every job until the next slot (algorithm 2); parameters as above.

    Each gets what its minimum satisfactory share reserves now. Of the devices left, jobs without such a share get their
    least; then the next level goes, again and again, to the job of the greatest marginal return.

    Returns
    -------
    Devices of every job, and the slots until one needs more; infinite if none does.
    """
    found: tuple[Ints, float] = _elastic_allocation(demands, _spans(demands, total, total, offset), offset)
    return found


def _spans(demands: Demands, total: int, more: int, offset: float) -> _Spans:
    """Nothing is reserved: the rest of this slot, and all time after it."""
    # Each job that reserves adds at most one span; in the elastic allocation every device may add one more.
    size, num_jobs = len(demands.left) + more + 4, len(demands.left)
    spans = _Spans(
        np.zeros(size),
        np.full(size, _END),
        np.full(size, total),
        np.zeros((num_jobs, size), int64),
        np.array([2]),
    )
    spans.start[1], spans.after[0] = 1.0 - offset, 1
    return spans


@compiled
def _level(demands, spans, job, share, span):  # type: ignore[no-untyped-def]
    """The highest level up to its share that a job can have in a span; -1 if too few devices are free for any."""
    level = share
    while level >= 0 and demands.num_devices[job, level] > spans.free[span]:
        level -= 1
    return level


@compiled
def _end_slot(demands, spans, offset, job, share, span, left):  # type: ignore[no-untyped-def]
    """The end of the slot in which a job with a share from a span on is done; -1 if that is after its deadline."""
    deadline = demands.deadline[job]
    while span != _END and spans.start[span] < deadline:
        level = _level(demands, spans, job, share, span)
        if level >= 0:
            start, after = spans.start[span], spans.after[span]
            until = deadline if after == _END else min(deadline, spans.start[after])
            work = (until - start) * demands.work[job, level]
            if work >= left * (1 - 1e-9):
                # Slots have the same bounds at every decision, so that a plan can be kept.
                slot = np.ceil(start + left / demands.work[job, level] + offset - 1e-9)
                return max(slot, np.floor(start + offset + 1e-9) + 1.0) - offset
            left -= work
        span = spans.after[span]
    return -1.0


@compiled
def _reserve(demands, spans, job, share, span, end):  # type: ignore[no-untyped-def]
    """Reserve a share from a span on until an end; the span in which that lies is cut there."""
    while span != _END and spans.start[span] < end:
        after = spans.after[span]
        if after == _END or spans.start[after] > end:
            new = spans.used[0]
            spans.used[0] += 1
            spans.start[new], spans.free[new], spans.after[new] = end, spans.free[span], after
            spans.plan[:, new] = spans.plan[:, span]
            spans.after[span] = new
        level = _level(demands, spans, job, share, span)
        if level >= 0:
            spans.plan[job, span] = demands.num_devices[job, level]
            spans.free[span] -= demands.num_devices[job, level]
        span = spans.after[span]


@compiled
def _release(spans, job):  # type: ignore[no-untyped-def]
    for span in range(spans.used[0]):
        spans.free[span] += spans.plan[job, span]
        spans.plan[job, span] = 0


@compiled
def _fill_progressively(demands, spans, offset, job, span, left):  # type: ignore[no-untyped-def]
    """Algorithm 1: reserve the satisfactory share from a span on; return its level, or -1 if there is none."""
    for share in range(demands.least[job], demands.num_levels[job]):
        end = _end_slot(demands, spans, offset, job, share, span, left)
        if end >= 0:
            _reserve(demands, spans, job, share, span, end)
            return share
    return -1


@compiled
def _minimum_satisfactory_shares(demands, spans, offset):  # type: ignore[no-untyped-def]
    share = np.full(len(demands.left), -1)
    for job in range(len(share)):
        if demands.deadline[job] < np.inf:
            share[job] = _fill_progressively(demands, spans, offset, job, 0, demands.left[job])
    return share


@compiled
def _device_slots(spans, job):  # type: ignore[no-untyped-def]
    """Devices times time that a job reserved."""
    total, span = 0.0, 0
    while spans.after[span] != _END:
        after = spans.after[span]
        total += spans.plan[job, span] * (spans.start[after] - spans.start[span])
        span = after
    return total


@compiled
def _allocate_now(demands, spans, offset, in_time, job, level):  # type: ignore[no-untyped-def]
    """Give a job a level until the next slot, and reserve what it then needs; return the device slots of both."""
    _release(spans, job)
    spans.plan[job, 0] = demands.num_devices[job, level]
    spans.free[0] -= demands.num_devices[job, level]
    left = demands.left[job] - demands.work[job, level] * spans.start[1]
    if not in_time[job]:
        return demands.num_devices[job, level] * demands.left[job] / demands.work[job, level]
    if left > 0:
        _fill_progressively(demands, spans, offset, job, 1, left)
    return _device_slots(spans, job)


@compiled
def _marginal_return(demands, spans, offset, in_time, level, slots, job):  # type: ignore[no-untyped-def]
    """Algorithm 2: device slots that the next level saves for each device that it adds."""
    now = level[job]
    if now + 1 >= demands.num_levels[job]:
        return -np.inf
    before = demands.num_devices[job, now] if now >= 0 else 0
    more = demands.num_devices[job, now + 1] - before
    if more > spans.free[0]:
        return -np.inf
    if now < 0 and not in_time[job]:
        return np.inf
    plan, free, used = spans.plan[job].copy(), spans.free.copy(), spans.used[0]
    after = spans.after.copy()
    marginal_return = (slots[job] - _allocate_now(demands, spans, offset, in_time, job, now + 1)) / more
    spans.plan[job], spans.free[:], spans.used[0], spans.after[:] = plan, free, used, after
    return marginal_return


@compiled
def _elastic_allocation(demands, spans, offset):  # type: ignore[no-untyped-def]
    in_time = _minimum_satisfactory_shares(demands, spans, offset) >= 0
    size = len(in_time)
    level, slots = np.full(size, -1, int64), np.zeros(size, float64)
    for job in range(size):
        slots[job] = _device_slots(spans, job)
        while (
            level[job] + 1 < demands.num_levels[job]
            and demands.num_devices[job, level[job] + 1] <= spans.plan[job, 0]
        ):
            level[job] += 1
    returns = np.array(
        [_marginal_return(demands, spans, offset, in_time, level, slots, job) for job in range(size)]
    )
    while spans.free[0] > 0 and size:
        best = np.argmax(returns)
        if returns[best] == -np.inf:
            break
        # Others may have taken devices since it was computed.
        last = returns[best]
        returns[best] = _marginal_return(demands, spans, offset, in_time, level, slots, best)
        if returns[best] >= last:
            level[best] += 1
            slots[best] = _allocate_now(demands, spans, offset, in_time, best, level[best])
            returns[best] = _marginal_return(demands, spans, offset, in_time, level, slots, best)
    return spans.plan[:, 0].copy(), _next_need(spans)


@compiled
def _next_need(spans):  # type: ignore[no-untyped-def]
    """When a job first needs more devices than now; infinite if none does."""
    span = spans.after[0]
    while span != _END:
        if np.any(spans.plan[:, span] > spans.plan[:, 0]):
            return spans.start[span]
        span = spans.after[span]
    return np.inf
