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
have ended; both are given, the skew by the name of the model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numba import njit

from trainyard.fleet.gittins import gittins_index, published_index
from trainyard.fleet.place.pools import pool_for
from trainyard.fleet.policy import Floats, Ints, Need, Reasons, Snapshot, Targets
from trainyard.fleet.site import FleetError, Site

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


def skew(tensor_bytes: Sequence[float]) -> float:
    """Share of its largest tensor in a model."""
    return max(tensor_bytes) / sum(tensor_bytes)


# Rows of the state, which has a column for every job, in the order of arrival: which job it is; its queue, from 0; its
# place in the published order of all jobs; time and service that it had attained when it last began anew; when after that
# it first had devices, NaN before; and whether it is to be consolidated.
_SERIAL, _QUEUE, _PLACE, _BEFORE_S, _BEFORE, _SINCE_S, _SKEWED = range(7)


@dataclass(frozen=True)
class Tiresias:
    """See the module.

    Attributes
    ----------
    thresholds : between queues, ascending, device-seconds; seconds if not ``two_dimensional``.
    promote_knob : waiting over running at which a job begins anew; infinite for never.
    samples : service of earlier jobs, device-seconds; with it, Gittins instead of LAS.
    as_in_pollux : within a queue by arrival instead of by start, where jobs have no index; nothing is said of placement.
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

    def start(self, site: Site) -> Floats:
        """Nobody is queued."""
        return np.zeros((7, 0))

    def decide(self, snapshot: Snapshot, state: Floats) -> tuple[Targets, Floats]:
        """Move jobs between queues, order each queue, and find out when the next job moves."""
        now_s, gangs, num = snapshot.now_s, snapshot.num_devices, snapshot.num_jobs
        attained_s = snapshot.attained_s
        attained = snapshot.attained_device_s if self.two_dimensional else attained_s
        rate = gangs if self.two_dimensional else np.ones_like(gangs)
        rules = (self._limits, self.promote_knob, self.as_published)
        jobs, ran_s, service = _requeued(
            state, snapshot.serial, now_s, snapshot.held, attained_s, attained, *rules
        )
        for number in np.isnan(jobs[_SKEWED]).nonzero()[0].tolist():
            jobs[_SKEWED, number] = self._is_skewed(snapshot.job(number).model)
        order = self._order(snapshot, jobs, service)
        if self.as_published:
            jobs[_PLACE, order] = np.arange(num)
        runs = np.zeros(num, np.bool_)
        first = _fit(order, gangs, snapshot.allowed, snapshot.site.devices_of_type, runs)
        # Where nobody waits, no move changes who runs; the program counts its moves by the events all the same.
        wait_s, all_run = _INF, len(first) == num
        if self.as_published or not all_run:
            wait_s = _next_move_s(jobs, now_s, runs, rate, ran_s, service, *rules)
        waiting = _NOBODY if all_run else np.flatnonzero(~runs)
        return Targets(
            first,
            consolidate=None if self.as_published or self.as_in_pollux else jobs[_SKEWED, first] > 0,
            ask_again_s=now_s + wait_s,
            stands=not self.as_published,
            reasons=Reasons(waiting, lambda number: self._reason(jobs, service, order, number)),
        ), jobs

    def _is_skewed(self, model: str) -> bool:
        return self.skews.get(model, 1.0) > self.pack_limit

    def _order(self, snapshot: Snapshot, jobs: Floats, service: Floats) -> Ints:
        # Of integers so short, as many as there are queues are sorted in one pass.
        queue = jobs[_QUEUE].astype(np.int16)
        turn = jobs[_PLACE] if self.as_published else snapshot.first_start_s
        if not self.samples:
            order: Ints = (snapshot.arrival_s if self.as_in_pollux else turn).argsort(kind="stable")
            order = order[queue[order].argsort(kind="stable")]
            return order
        if self.as_published:
            index = self._table[np.searchsorted(self._samples, service, "right")]
            return np.lexsort((turn, snapshot.arrival_s, -index, queue))
        index = gittins_index(service, self._limits[queue], self._samples)
        return np.lexsort((turn, -index, queue))

    def _reason(self, jobs: Floats, service: Floats, order: Ints, number: int) -> str:
        ahead = int(np.flatnonzero(order == number)[0])
        queue = f"queue {int(jobs[_QUEUE, number]) + 1} of {len(self._limits)}"
        unit = "device-seconds" if self.two_dimensional else "seconds"
        return f"in {queue} after {service[number]:.0f} {unit}; {ahead} jobs are before it"


@njit(cache=True)
def _requeued(state, serial, now_s, held, attained_s, attained, limits, knob, as_published):  # type: ignore[no-untyped-def]
    """The state of the jobs that are there now, and what each has run and attained since it last began anew."""
    jobs, known = _continued(state, serial)
    ran_s, service = attained_s - jobs[_BEFORE_S], attained - jobs[_BEFORE]
    moved = np.zeros(len(serial), np.bool_)
    for i in range(len(serial)):
        if held[i] > 0:
            former = queue = int(jobs[_QUEUE, i])
            if np.isnan(jobs[_SINCE_S, i]):
                jobs[_SINCE_S, i] = now_s - ran_s[i]
            while service[i] + _NEAR_S >= limits[queue]:
                queue += 1
                if as_published:
                    break
            jobs[_QUEUE, i], moved[i] = queue, queue != former
        elif knob < np.inf and jobs[_QUEUE, i] > 0:
            limit_s = np.floor(knob * ran_s[i]) if as_published else knob * ran_s[i]
            if now_s - jobs[_SINCE_S, i] - ran_s[i] + _NEAR_S >= limit_s:
                jobs[_QUEUE, i], moved[i] = 0, True
                jobs[_BEFORE_S, i], jobs[_BEFORE, i], jobs[_SINCE_S, i] = attained_s[i], attained[i], np.nan
                ran_s[i] = service[i] = 0.0
    if as_published:
        _queue_up(jobs[_PLACE], known, moved, held, state.shape[1])
    return jobs, ran_s, service


@njit(cache=True)
def _queue_up(places, known, moved, held, last):  # type: ignore[no-untyped-def]
    """First those that run, then those that wait, that come, and that moved."""
    for i in range(len(places)):
        if i >= known:
            places[i] = 2 * last + i
        elif moved[i]:
            places[i] = 2 * last + len(places) + i
        elif held[i] == 0:
            places[i] += last


@njit(cache=True)
def _continued(state, serial):  # type: ignore[no-untyped-def]
    """The state of the jobs that are there now as it was, and how many it knows: new ones come last."""
    num, last = len(serial), state.shape[1]
    jobs = np.empty((len(state), num))
    column = known = 0
    while column < last and known < num:
        if state[_SERIAL, column] < serial[known]:
            column += 1
            continue
        # As many as follow each other are copied at once.
        size, most = 1, min(last - column, num - known)
        while size < most and state[_SERIAL, column + size] == serial[known + size]:
            size += 1
        jobs[:, known : known + size] = state[:, column : column + size]
        column, known = column + size, known + size
    jobs[:, known:] = 0.0
    jobs[_SERIAL, known:] = serial[known:]
    jobs[_SINCE_S, known:] = jobs[_SKEWED, known:] = np.nan
    return jobs, known


@njit(cache=True)
def _fit(order, gangs, allowed, room, runs):  # type: ignore[no-untyped-def]
    """Who runs, most urgent first; noted in ``runs``, too."""
    left, total = room.copy(), room.sum()
    first, num = np.empty(len(order), np.int64), 0
    for number in order:
        if total == 0:
            break
        pool = pool_for(left, gangs[number], -1, allowed[number])
        if pool >= 0:
            left[pool] -= gangs[number]
            total -= gangs[number]
            first[num], runs[number] = number, True
            num += 1
    return first[:num]


@njit(cache=True)
def _next_move_s(jobs, now_s, runs, rate, ran_s, service, limits, knob, as_published):  # type: ignore[no-untyped-def]
    """Time until a job goes to another queue, if what runs now runs on."""
    best_s = np.inf
    for i in range(len(runs)):
        queue = int(jobs[_QUEUE, i])
        if runs[i] and as_published:
            wait_s = max(1.0, np.floor((limits[queue] - ran_s[i]) / rate[i]))
        elif runs[i]:
            wait_s = (limits[queue] - service[i]) / rate[i]
        elif queue > 0:
            wait_s = knob * ran_s[i] - (now_s - jobs[_SINCE_S, i] - ran_s[i])
            wait_s = np.floor(wait_s) if as_published else wait_s
        else:
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
    as_in_pollux : as in the simulator of the authors of Pollux, who compare with it: within a queue the job that came
        first goes first, also before those that run, and nothing is said of placement.
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
