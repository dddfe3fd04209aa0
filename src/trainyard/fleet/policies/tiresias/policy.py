"""Tiresias: queues by attained service, that is devices times time; jobs move down as they attain more.

J. Gu, M. Chowdhury, K. G. Shin, Y. Zhu, M. Jeon, J. Qian, H. Liu, C. Guo, "Tiresias: A GPU Cluster Manager for
Distributed Deep Learning", NSDI 2019.

How long a job will run is not known, what it has had is. Discretised two-dimensional LAS (section 3.2): queue i holds the
jobs whose attained service a = W t (devices W, time t) lies between two thresholds; upper queues go first, and within one
the job that was started first. With a distribution of the service S of earlier jobs, discretised two-dimensional Gittins:
within a queue, first the job of largest index

    G(a) = P(S - a <= D | S > a) / E[min(S - a, D) | S > a],    D the upper threshold of its queue

A job that has waited ``promote_knob`` (PromoteKnob) times as long as it ran begins anew at the top, as if it had neither
run nor waited. Placement (section 3.3): a job whose model is skewed, one tensor being most of it, is consolidated; any
other lies wherever devices are free.

The authors' simulator (SymbioticLab/Tiresias, ``run_sim.py``) departs from this, and ``as_published`` does as it does:

- Within a queue, jobs that run precede those that wait, else they stay in the order in which they came into the queue.
- A job goes down one queue at a time, and only at an event. When the next may be due is computed as (threshold - t) / W,
  whole seconds, where threshold / W - t is meant: most demotions of gangs come late.
- The index has a fixed D, lacks "- a" in E, and is tabulated at the samples, in integer and rounded arithmetic.
- Nothing is said of placement.

Fidelity: simplified. Left out: measuring skew by watching a job's network traffic, and learning PackLimit from jobs that
have ended. The skew of a training is computed from its tensors, that of a job of a trace goes by the name of its model;
the limit is given.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numba import njit

from trainyard.fleet.known import KnownJob
from trainyard.fleet.place.pools import pool_for
from trainyard.fleet.policies.tiresias.gittins import gittins_index, published_index
from trainyard.fleet.policies.tiresias.queue_order import carried_over, repaired
from trainyard.fleet.policy import Reasons, Targets
from trainyard.fleet.site import FleetError, Site
from trainyard.fleet.snapshot import Floats, Ints, Need, Snapshot
from trainyard.fleet.traits import EQUAL_WORKERS, Wish

_INF = float("inf")
_NOBODY = np.zeros(0, np.int64)
# Service is a sum of floats: a job this near to a threshold (device-seconds) has reached it.
_NEAR_S = 1e-4
# A demotion that rounding would put off for ever is looked for at the latest after this.
_LEAST_WAIT_S = 1e-3

SKEWS = {
    "vgg11": 0.77, "vgg16": 0.74, "vgg19": 0.72, "alexnet": 0.62, "googlenet": 0.15, "resnet50": 0.09, "resnet101": 0.05,
    "resnet152": 0.04, "inception3": 0.09, "inception4": 0.04,
}  # fmt: skip
"""Skew of the models of the paper's evaluation: share of the largest tensor in all parameters."""


# What the state knows of a job. Its queue, from 0, its index, negative, and its turn make its place, the smallest first.
# Then the devices that it asks for, the types that it can run on, as bits, whether it is to be consolidated, and the
# service that it attained since it last began anew. Where jobs may move that do not run, also the time that it ran since,
# both until then, and when after that it first had devices, NaN before.
_QUEUE, _INDEX, _TURN, _GANG, _ALLOWED, _SKEWED, _SERVICE, _RAN_S, _BEFORE_S, _BEFORE, _SINCE_S = range(11)


class Line(NamedTuple):
    """The jobs of the last decision, numbered as in its snapshot.

    Attributes
    ----------
    serial : which they are.
    jobs : what is known of them, a row for each thing.
    order : their numbers, most urgent first.
    first : numbers of those that were to run.
    """

    serial: Ints
    jobs: Floats
    order: Ints
    first: Ints


@dataclass(frozen=True)
class Tiresias:
    """See the module.

    Attributes
    ----------
    thresholds : between queues, ascending, device-seconds; seconds if not ``two_dimensional``.
    promote_knob : waiting over running at which a job begins anew; infinite for never.
    samples : service of earlier jobs, device-seconds; with it, Gittins instead of LAS.
    as_in_pollux : within a queue by when they came into it instead of by start; nothing is said of placement.
    skews, pack_limit : skew by model, and from which on a job is consolidated, as one of unknown skew is.
    """

    thresholds: tuple[float, ...]
    promote_knob: float
    samples: tuple[float, ...]
    two_dimensional: bool
    pack_limit: float
    as_in_pollux: bool
    as_published: bool
    skews: Mapping[str, float] = field(default_factory=lambda: SKEWS)
    preempts: bool = field(default=True, init=False)
    needs: frozenset[Need] = field(default=frozenset(), init=False)
    heeds: frozenset[Wish] = field(default=EQUAL_WORKERS, init=False)

    def __post_init__(self) -> None:
        if list(self.thresholds) != sorted(set(self.thresholds)) or min(self.thresholds, default=1.0) <= 0:
            raise FleetError(f"thresholds of tiresias must ascend from above 0, got {self.thresholds}")
        if self.as_in_pollux and (self.as_published or self.samples):
            raise FleetError(
                "as_in_pollux is the order of queues in another simulator: give it without as_published and samples"
            )
        if self.promote_knob <= 0:
            raise FleetError(f"promote_knob of tiresias must be above 0, or None, got {self.promote_knob}")

    @cached_property
    def _limits(self) -> Floats:
        return np.array((*self.thresholds, _INF))

    @cached_property
    def _samples(self) -> Floats:
        return np.sort(np.array(self.samples, np.float64))

    @cached_property
    def _table(self) -> Floats:
        return published_index(self._samples, self.thresholds[0])

    @cached_property
    def _all_may_move(self) -> bool:
        """Whether jobs may move that neither ran nor are new."""
        return self.as_published or self.promote_knob < _INF

    def start(self, site: Site) -> Line:
        """Nobody is queued."""
        return Line(_NOBODY, np.zeros((_SINCE_S + 1 if self._all_may_move else _RAN_S, 0)), _NOBODY, _NOBODY)

    def decide(self, snapshot: Snapshot, state: Line) -> tuple[Targets, Line]:
        """Move jobs between queues, order each queue, and find out when the next job moves."""
        now_s, rules = snapshot.now_s, (self._limits, self.promote_knob, self.as_published)
        jobs, renumbered, numbers, num_known = _continued(
            state.serial, state.jobs, state.first, snapshot.serial, self._all_may_move
        )
        # Thousands may wait, of whom nothing can have changed: they are not looked at.
        some = len(numbers) < snapshot.num_jobs
        seen = replace(snapshot, rows=snapshot.rows[numbers]) if some else snapshot
        moved = _requeued(jobs, numbers, now_s, *self._columns(seen), *rules, self.as_in_pollux)
        for number in range(num_known, snapshot.num_jobs):
            jobs[_SKEWED, number] = self._is_skewed(snapshot.job(number))
        if self.as_published:
            order = self._published_order(snapshot, jobs, num_known, moved, len(state.order))
        else:
            if self.samples:
                jobs[_INDEX, numbers], moved = self._index(jobs[:, numbers]), numbers
            order = repaired(state.order, renumbered, moved, jobs[_QUEUE : _TURN + 1])
        first, waiting = _fit(order, jobs, snapshot.site.devices_of_type)
        # Where nobody waits, no move changes who runs; the program counts its moves by the events all the same.
        wait_s = _INF
        if self.as_published or len(waiting):
            wait_s = _next_move_s(jobs, now_s, first, waiting, self.two_dimensional, *rules)
        return Targets(
            first,
            consolidate=None if self.as_published or self.as_in_pollux else jobs[_SKEWED][first] > 0,
            ask_again_s=now_s + wait_s,
            stands=not self.as_published,
            reasons=Reasons(waiting, lambda number: self._reason(jobs, order, number)),
        ), Line(snapshot.serial, jobs, order, first)

    def _columns(self, seen: Snapshot) -> tuple[Ints, Ints, Ints, Floats, Floats, Floats]:
        """Of some jobs: devices held, asked for, and allowed; time and service attained; and when they first started."""
        attained = seen.attained_device_s if self.two_dimensional else seen.attained_s
        start_s = seen.first_start_s
        return seen.held, seen.num_devices, seen.allowed, seen.attained_s, attained, start_s

    def _is_skewed(self, job: KnownJob) -> bool:
        """By what is known of its tensors, else by the name of its model."""
        known = job.skew
        return (self.skews.get(job.model, 1.0) if known is None else known) > self.pack_limit

    def _index(self, jobs: Floats) -> Floats:
        return -gittins_index(jobs[_SERVICE], self._limits[jobs[_QUEUE].astype(np.int64)], self._samples)

    def _published_order(
        self, snapshot: Snapshot, jobs: Floats, num_known: int, moved: Ints, num_before: int
    ) -> Ints:
        turn, queue = jobs[_TURN], jobs[_QUEUE]
        _queue_up(turn, num_known, moved, snapshot.held, num_before)
        if self.samples:
            index = self._table[np.searchsorted(self._samples, jobs[_SERVICE], "right")]
            order: Ints = np.lexsort((turn, snapshot.arrival_s, -index, queue))
        else:
            order = np.lexsort((turn, queue))
        turn[order] = np.arange(len(order))
        return order

    def _reason(self, jobs: Floats, order: Ints, number: int) -> str:
        ahead = int(np.flatnonzero(order == number)[0])
        queue = f"queue {int(jobs[_QUEUE, number]) + 1} of {len(self._limits)}"
        unit = "device-seconds" if self.two_dimensional else "seconds"
        return f"in {queue} after {jobs[_SERVICE, number]:.0f} {unit}; {ahead} jobs are before it"


@njit(cache=True)
def _continued(before, known, first, serial, all_may_move):  # type: ignore[no-untyped-def]
    """What is known of the jobs that are there now, from the last decision.

    Returns
    -------
    What is known; the number now of every job of that decision, -1 if it left; the numbers of the jobs that may move,
    because they were to run or are new; and how many are not new, which are the first.
    """
    jobs, renumbered, num_known = carried_over(before, known, serial)
    jobs[:, num_known:] = 0.0
    jobs[_TURN, num_known:] = jobs[_SINCE_S:, num_known:] = np.nan
    ran = renumbered[first]
    numbers = np.concatenate((ran[ran >= 0], np.arange(num_known, len(serial))))
    if all_may_move or len(numbers) == len(serial):
        numbers = np.arange(len(serial))
    return jobs, renumbered, numbers, num_known


@njit(cache=True)
def _requeued(  # type: ignore[no-untyped-def]
    jobs,
    numbers,
    now_s,
    held,
    gangs,
    allowed,
    attained_s,
    attained,
    start_s,
    limits,
    knob,
    as_published,
    as_in_pollux,
):
    """Note how jobs are now, and return the numbers of those whose place is another."""
    moved, num_moved, may_begin_anew = np.empty(len(numbers), np.int64), 0, len(jobs) > _SINCE_S
    for i in range(len(numbers)):
        job = jobs[:, numbers[i]]
        former_queue, former_turn = job[_QUEUE], job[_TURN]
        job[_GANG], job[_ALLOWED], job[_SERVICE] = gangs[i], allowed[i], attained[i]
        if may_begin_anew:
            job[_SERVICE] -= job[_BEFORE]
            job[_RAN_S] = attained_s[i] - job[_BEFORE_S]
            if held[i] > 0 and np.isnan(job[_SINCE_S]):
                job[_SINCE_S] = now_s - job[_RAN_S]
        if held[i] > 0:
            job[_QUEUE] = _queue_of(job[_QUEUE], job[_SERVICE], limits, as_published)
        elif knob < np.inf and job[_QUEUE] > 0:
            _begin_anew(job, now_s, attained_s[i], attained[i], knob, as_published)
        if as_in_pollux:
            if job[_QUEUE] != former_queue or np.isnan(former_turn):
                job[_TURN] = now_s
        elif not as_published:
            job[_TURN] = np.inf if np.isnan(start_s[i]) else start_s[i]
        if job[_QUEUE] != former_queue or job[_TURN] != former_turn:
            moved[num_moved] = numbers[i]
            num_moved += 1
    return moved[:num_moved]


@njit(cache=True)
def _queue_of(queue, service, limits, as_published):  # type: ignore[no-untyped-def]
    """Where a job that runs goes down to; in the program to the next queue at most."""
    while service + _NEAR_S >= limits[int(queue)]:
        queue += 1
        if as_published:
            break
    return queue


@njit(cache=True)
def _begin_anew(job, now_s, attained_s, attained, knob, as_published):  # type: ignore[no-untyped-def]
    """A job that waits does so if it has waited for long enough."""
    limit_s = np.floor(knob * job[_RAN_S]) if as_published else knob * job[_RAN_S]
    if now_s - job[_SINCE_S] - job[_RAN_S] + _NEAR_S >= limit_s:
        job[_BEFORE_S], job[_BEFORE], job[_SINCE_S] = attained_s, attained, np.nan
        job[_QUEUE] = job[_RAN_S] = job[_SERVICE] = 0.0


@njit(cache=True)
def _queue_up(places, num_known, moved, held, num_before):  # type: ignore[no-untyped-def]
    """First those that run, then those that wait, that come, and that moved."""
    for number in range(len(places)):
        if number >= num_known:
            places[number] = 2 * num_before + number
        elif held[number] == 0:
            places[number] += num_before
    for number in moved[moved < num_known]:
        places[number] = 2 * num_before + len(places) + number


@njit(cache=True)
def _fit(order, jobs, room):  # type: ignore[no-untyped-def]
    """Who runs, most urgent first, and who waits."""
    left, total = room.copy(), room.sum()
    first, num = np.empty(len(order), np.int64), 0
    waits = np.ones(len(order), np.bool_)
    for number in order:
        if total == 0:
            break
        gang = int(jobs[_GANG, number])
        pool = pool_for(left, gang, -1, int(jobs[_ALLOWED, number]))
        if pool >= 0:
            left[pool] -= gang
            total -= gang
            first[num], waits[number] = number, False
            num += 1
    return first[:num].copy(), np.flatnonzero(waits)


@njit(cache=True)
def _next_move_s(jobs, now_s, first, waiting, two_dimensional, limits, knob, as_published):  # type: ignore[no-untyped-def]
    """Time until a job goes to another queue, if what runs now runs on."""
    best_s = np.inf
    for number in first:
        limit, rate = limits[int(jobs[_QUEUE, number])], jobs[_GANG, number] if two_dimensional else 1.0
        if as_published:
            wait_s = max(1.0, np.floor((limit - jobs[_RAN_S, number]) / rate))
        else:
            wait_s = (limit - jobs[_SERVICE, number]) / rate
        best_s = min(best_s, max(wait_s, _LEAST_WAIT_S))
    if knob == np.inf:
        return best_s
    for number in waiting:
        if jobs[_QUEUE, number] > 0:
            ran_s = jobs[_RAN_S, number]
            wait_s = knob * ran_s - (now_s - jobs[_SINCE_S, number] - ran_s)
            if as_published:
                wait_s = np.floor(wait_s)
                # One that is due already, the program sees at the next event.
                if wait_s <= 0:
                    continue
            best_s = min(best_s, max(wait_s, _LEAST_WAIT_S))
    return best_s


def tiresias(
    *,
    thresholds: tuple[float, ...] = (3250.0,),
    promote_knob: float | None = None,
    samples: tuple[float, ...] = (),
    two_dimensional: bool = True,
    pack_limit: float = 0.5,
    as_in_pollux: bool = False,
    as_published: bool = False,
) -> Tiresias:
    """Queues by attained service.

    Parameters
    ----------
    thresholds : between queues, ascending, device-seconds. The paper finds two queues enough; the authors' program has
        three, with thresholds 3250 and 7200.
    promote_knob : a job that has waited this many times as long as it ran begins again at the top; None for never.
    samples : service of earlier jobs, device-seconds. With it jobs of one queue go by their Gittins index, else by their
        start.
    two_dimensional : whether service counts devices; if not, it is time alone.
    pack_limit : PackLimit: share of the largest tensor above which a model's jobs are consolidated.
    as_in_pollux : as in the simulator of the authors of Pollux, who compare with it: within a queue the job goes
        first that came into it first, also before those that run, and nothing is said of placement.
    as_published : with the rules of the authors' program.

    Returns
    -------
    The policy.

    Raises
    ------
    FleetError
        If thresholds do not ascend, or the knob is not above 0.

    Examples
    --------
    >>> tiresias(thresholds=(3250.0, 7200.0)).thresholds
    (3250.0, 7200.0)
    """
    knob = _INF if promote_knob is None else promote_knob
    return Tiresias(thresholds, knob, samples, two_dimensional, pack_limit, as_in_pollux, as_published)
