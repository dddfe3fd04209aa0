"""Tiresias as its authors' simulator has it (SymbioticLab/Tiresias, ``run_sim.py``), which departs from their paper.

- Within a queue, jobs that run precede those that wait, else they stay in the order in which they came into the queue.
- A job goes down one queue at a time, and only at an event. When the next may be due is computed as (threshold - t) / W,
  whole seconds, where threshold / W - t is meant: most demotions of gangs come late.
- The index has a fixed D, lacks "- a" in E, and is tabulated at the samples, in integer and rounded arithmetic.
- Nothing is said of placement.

J. Gu et al., "Tiresias: A GPU Cluster Manager for Distributed Deep Learning", NSDI 2019.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from trainyard.compiling import only_compiled, only_lean
from trainyard.fleet.allocation import Allocation, Queue, Reasons
from trainyard.fleet.policies.tiresias.moves import (
    ALLOWED_TYPES,
    BEGAN_S,
    GANG,
    LEAST_WAIT_S,
    NEAR_S,
    QUEUE,
    RAN_S,
    RANK,
    SERVICE,
    Queues,
    fit,
    no_jobs,
    note_service,
    promote,
    still_there,
)
from trainyard.fleet.policies.tiresias.policy import Tiresias
from trainyard.fleet.snapshot import (
    ALLOWED,
    ATTAINED_DEVICE_S,
    ATTAINED_S,
    HELD,
    NUM_DEVICES,
    Floats,
    Ints,
    Snapshot,
)
from trainyard.fleet.traits import ORDERED, Traits
from trainyard.hardware.cluster import Cluster

_NOBODY = np.zeros(0, np.int64)


@dataclass(frozen=True)
class TiresiasProgram(Tiresias):
    """The policy; made by `tiresias_program`."""

    @property
    def traits(self) -> Traits:
        """Traits of a policy that only orders jobs."""
        return Traits(supports=ORDERED)

    @cached_property
    def _table(self) -> Floats:
        return tabulated_index(self.sorted_samples, self.thresholds[0])

    def start(self, cluster: Cluster) -> Queues:
        """Nobody is queued."""
        return Queues(_NOBODY, no_jobs(True), _NOBODY, _NOBODY, _NOBODY, _NOBODY, cluster.is_one_pool)

    def decide(self, snapshot: Snapshot, state: Queues) -> tuple[Allocation, Queues]:
        """Move jobs between queues, order each queue, and find out when the next job moves."""
        now_s, room, held = snapshot.now_s, snapshot.cluster.devices_of_type, snapshot.held
        rules = self.upper_thresholds, self.promote_knob, self.two_dimensional
        jobs, _, numbers, num_known = still_there(
            state.serial, state.jobs, state.fitting, snapshot.serial, held, now_s, True
        )
        moved = _requeue(jobs, numbers, now_s, snapshot.facts(numbers), *rules)
        order = self._order(snapshot, jobs, num_known, moved, len(state.order))
        fitting, waits = fit(order, jobs, room)
        wait_s = _next_move_s(jobs, now_s, fitting, waits, *rules)
        return Allocation(
            Queue(fitting),
            ask_again_s=now_s + wait_s,
            reasons=Reasons(np.flatnonzero(waits), lambda number: self.reason(jobs, order, number)),
        ), Queues(snapshot.serial, jobs, order, fitting, held, room, state.is_one_pool)

    def _order(self, snapshot: Snapshot, jobs: Floats, num_known: int, moved: Ints, num_before: int) -> Ints:
        rank, queue = jobs[RANK], jobs[QUEUE]
        _rank(rank, num_known, moved, snapshot.held, num_before)
        if self.samples:
            index = self._table[np.searchsorted(self.sorted_samples, jobs[SERVICE], "right")]
            order: Ints = np.lexsort((rank, snapshot.arrival_s, -index, queue))
        else:
            order = np.lexsort((rank, queue))
        rank[order] = np.arange(len(order))
        return order


def tiresias_program(
    *,
    thresholds: tuple[float, ...] = (3250.0, 7200.0),
    promote_knob: float | None = None,
    samples: tuple[float, ...] = (),
    two_dimensional: bool = True,
) -> TiresiasProgram:
    """Return the same as `trainyard.fleet.policies.tiresias.policy.tiresias`, with the thresholds of the program."""
    knob = float("inf") if promote_knob is None else promote_knob
    return TiresiasProgram(thresholds, knob, samples, two_dimensional, 0.5)


@only_compiled
def _requeue(jobs, numbers, now_s, seen, thresholds, knob, two_dimensional):  # type: ignore[no-untyped-def]
    """Note the service of jobs, demote and promote them, and return the numbers of those whose queue changed."""
    held, attained_s = seen[HELD], seen[ATTAINED_S]
    attained = seen[ATTAINED_DEVICE_S if two_dimensional else ATTAINED_S]
    moved, num_moved = np.empty(len(numbers), np.int64), 0
    for i in range(len(numbers)):
        job = jobs[:, numbers[i]]
        former_queue = job[QUEUE]
        job[GANG], job[ALLOWED_TYPES] = seen[NUM_DEVICES, i], seen[ALLOWED, i]
        note_service(job, True, now_s, held[i] > 0, attained_s[i], attained[i])
        if held[i] > 0 and job[SERVICE] + NEAR_S >= thresholds[int(job[QUEUE])]:
            job[QUEUE] += 1
        if held[i] == 0 and knob < np.inf and job[QUEUE] > 0:
            promote(job, now_s, attained_s[i], attained[i], np.floor(knob * job[RAN_S]))
        if job[QUEUE] != former_queue:
            moved[num_moved] = numbers[i]
            num_moved += 1
    return moved[:num_moved]


@only_lean
def _rank(ranks, num_known, moved, held, num_before):  # type: ignore[no-untyped-def]
    """Within a queue: first those that ran, then those that waited, that come, and that moved here."""
    for number in range(len(ranks)):
        if number >= num_known:
            ranks[number] = 2 * num_before + number
        elif held[number] == 0:
            ranks[number] += num_before
    for number in moved:
        if number < num_known:
            ranks[number] = 2 * num_before + len(ranks) + number


@only_compiled
def _next_move_s(jobs, now_s, runs, waits, thresholds, knob, two_dimensional):  # type: ignore[no-untyped-def]
    """Time until a job goes to another queue, as the program computes it; it counts its moves also where nobody waits."""
    best_s = np.inf
    for number in runs:
        rate = jobs[GANG, number] if two_dimensional else 1.0
        wait_s = np.floor((thresholds[int(jobs[QUEUE, number])] - jobs[RAN_S, number]) / rate)
        best_s = min(best_s, max(wait_s, 1.0))
    if knob == np.inf:
        return best_s
    for number in np.flatnonzero(waits):
        ran_s = jobs[RAN_S, number]
        wait_s = np.floor(knob * ran_s - (now_s - jobs[BEGAN_S, number] - ran_s))
        # One that is due already, the program sees at the next event.
        if jobs[QUEUE, number] > 0 and wait_s > 0:
            best_s = min(best_s, max(wait_s, LEAST_WAIT_S))
    return best_s


def tabulated_index(samples: Floats, quantum: float) -> Floats:
    """The authors' table: an index for what is just below each sample, times a million, and 0 beyond the last."""
    num, below = len(samples), samples - 1
    sums = np.concatenate(([0.0], samples.cumsum()))
    first = np.searchsorted(samples, below, "right")
    last = np.searchsorted(samples, below + quantum, "right")
    last = np.where(below + quantum > samples[-1] - 1, num - 1, last)
    cost = (sums[last] - sums[first] + quantum * (num - last)) // (num - first)
    return np.append(np.round(np.round((last - first) / (num - first), 5) * 1e6 / cost, 4), 0.0)
