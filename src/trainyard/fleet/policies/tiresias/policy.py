"""Tiresias: queues by attained service, that is devices times time; jobs move down as they attain more.

J. Gu, M. Chowdhury, K. G. Shin, Y. Zhu, M. Jeon, J. Qian, H. Liu, C. Guo, "Tiresias: A GPU Cluster Manager for
Distributed Deep Learning", NSDI 2019.

How long a job will run is not known, what it has had is. Discretised two-dimensional LAS (section 3.2): queue i holds the
jobs whose attained service a = W t (devices W, time t) lies between two thresholds; upper queues go first, and within one
the job that was started first. With a distribution of the service S of earlier jobs, discretised two-dimensional Gittins:
within a queue, first the job of largest index

    G(a) = P(S - a <= D | S > a) / E[min(S - a, D) | S > a],    D the upper threshold of its queue

A job that has waited ``promote_knob`` (PromoteKnob) times as long as it ran is promoted to the top queue, as if it had
neither run nor waited. Placement (section 3.3): a job whose model is skewed, one tensor being most of it, is
consolidated; one of which it is known that it is not lies wherever devices are free.

Fidelity: simplified. Left out: measuring skew by watching a job's network traffic, and learning PackLimit from jobs that
have ended. The skew of a training is computed from its tensors, that of a job of a trace goes by the name of its model,
and where that is unknown, the placement of the run decides; the limit is given.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from trainyard.fleet.allocation import Allocation, Queue, Reasons
from trainyard.fleet.compiled_policy import CompiledPolicy
from trainyard.fleet.errors import FleetError
from trainyard.fleet.known import KnownJob
from trainyard.fleet.policies.tiresias.gittins import gittins_index
from trainyard.fleet.policies.tiresias.moves import (
    CONSOLIDATE,
    INDEX,
    QUEUE,
    RANK,
    SERVICE,
    Queues,
    decide,
    is_as_before,
    next_move,
    next_order,
    no_jobs,
    requeue,
    still_there,
)
from trainyard.fleet.policies.tiresias.queue_order import merged_order
from trainyard.fleet.snapshot import Floats, Ints, Need, Snapshot
from trainyard.fleet.traits import ORDERED, Traits
from trainyard.hardware.cluster import Cluster

_INF = float("inf")
_NOBODY = np.zeros(0, np.int64)

SKEWS = {
    "vgg11": 0.77, "vgg16": 0.74, "vgg19": 0.72, "alexnet": 0.62, "googlenet": 0.15, "resnet50": 0.09, "resnet101": 0.05,
    "resnet152": 0.04, "inception3": 0.09, "inception4": 0.04,
}  # fmt: skip
"""Skew of the models of the paper's evaluation: share of the largest tensor in all parameters."""


@dataclass(frozen=True)
class Tiresias:
    """Discretised two-dimensional LAS, or Gittins, as the module says.

    Attributes
    ----------
    thresholds : between queues, ascending, device-seconds; seconds if not ``two_dimensional``.
    promote_knob : waiting over running at which a job is promoted; infinite for never.
    samples : service of earlier jobs, device-seconds; with it, Gittins instead of LAS.
    skews, pack_limit : skew by model, and from which on a job is consolidated.
    by_skew : whether jobs are placed by skew; if not, all are as the run places them.
    """

    thresholds: tuple[float, ...]
    promote_knob: float
    samples: tuple[float, ...]
    two_dimensional: bool
    pack_limit: float
    skews: Mapping[str, float] = field(default_factory=lambda: SKEWS)
    by_skew: bool = True
    preempts: bool = field(default=True, init=False)
    needs: frozenset[Need] = field(default=frozenset(), init=False)

    def __post_init__(self) -> None:
        if list(self.thresholds) != sorted(set(self.thresholds)) or min(self.thresholds, default=1.0) <= 0:
            raise FleetError(f"thresholds of tiresias must ascend from above 0, got {self.thresholds}")
        if self.promote_knob <= 0:
            raise FleetError(f"promote_knob of tiresias must be above 0, or None, got {self.promote_knob}")

    @cached_property
    def upper_thresholds(self) -> Floats:
        """Upper threshold of each queue; that of the last is infinite."""
        return np.array((*self.thresholds, _INF))

    @cached_property
    def sorted_samples(self) -> Floats:
        return np.sort(np.array(self.samples, np.float64))

    @cached_property
    def _rules(self) -> tuple[Floats, float, bool]:
        return self.upper_thresholds, self.promote_knob, self.two_dimensional

    @property
    def traits(self) -> Traits:
        """Models that are skewed are consolidated; ranks make the order also in compiled code."""
        compiled = None
        if not self.samples:
            compiled = CompiledPolicy(decide, (self.by_skew, self._rules), mark=self._consolidate)
        by, without = ("by skew", self.without_placing) if self.by_skew else ("", None)
        return Traits(places_by=by, without_placing=without, supports=ORDERED, compiled=compiled)

    def without_placing(self) -> Tiresias:
        """The same, which leaves that to the run."""
        return replace(self, by_skew=False)

    def start(self, cluster: Cluster) -> Queues:
        """Nobody is queued."""
        known = no_jobs(self.promote_knob < _INF)
        return Queues(_NOBODY, known, _NOBODY, _NOBODY, _NOBODY, _NOBODY, cluster.is_one_pool)

    def decide(self, snapshot: Snapshot, state: Queues) -> tuple[Allocation, Queues]:
        """Move jobs between queues, order each queue, and find out when the next job moves."""
        now_s, room = snapshot.now_s, snapshot.cluster.devices_of_type
        serial, held = snapshot.serial, snapshot.held
        # Where nodes went away, jobs may have lost devices that they got at the last decision.
        all_may_move = not np.array_equal(state.room, room)
        jobs, renumbered, numbers, num_known = still_there(
            state.serial, state.jobs, state.fitting, serial, held, now_s, all_may_move
        )
        for number in range(num_known, len(serial)):
            jobs[CONSOLIDATE, number] = self._consolidate(snapshot.job(number))
        # Thousands may wait, of whom nothing can have changed: they are not looked at.
        seen = snapshot.facts(numbers)
        if self.samples:
            requeue(jobs, numbers, now_s, seen, *self._rules)
            jobs[INDEX, numbers] = self._index(jobs[:, numbers])
            order = merged_order(state.order, renumbered, numbers, jobs[QUEUE : RANK + 1])
            as_before = is_as_before(state, serial, order, held, room)
            fitting, waits, wait_s = next_move(
                order, jobs, room, now_s, held, as_before, state.is_one_pool, *self._rules
            )
        else:
            order, fitting, waits, wait_s = next_order(
                jobs, numbers, renumbered, state, serial, room, now_s, seen, held, *self._rules
            )
        # Who does not fit by number may have what is left over where one of the others finds no place.
        consolidate = jobs[CONSOLIDATE][order] if self.by_skew else None
        return Allocation(
            Queue(order, consolidate=consolidate),
            ask_again_s=now_s + wait_s,
            stands=True,
            reasons=Reasons(np.flatnonzero(waits), lambda number: self.reason(jobs, order, number)),
        ), Queues(serial, jobs, order, fitting, held, room, state.is_one_pool)

    def _consolidate(self, job: KnownJob) -> int:
        """Decide by the known sizes of a job's tensors, else by the name of its model; as `Queue.consolidate`."""
        skew = self.skews.get(job.model) if job.skew is None else job.skew
        return -1 if skew is None else int(skew > self.pack_limit)

    def _index(self, jobs: Floats) -> Floats:
        return -gittins_index(
            jobs[SERVICE], self.upper_thresholds[jobs[QUEUE].astype(np.int64)], self.sorted_samples
        )

    def reason(self, jobs: Floats, order: Ints, number: int) -> str:
        ahead = int(np.flatnonzero(order == number)[0])
        queue = f"queue {int(jobs[QUEUE, number]) + 1} of {len(self.upper_thresholds)}"
        unit = "device-seconds" if self.two_dimensional else "seconds"
        return f"in {queue} after {jobs[SERVICE, number]:.0f} {unit}; {ahead} jobs are before it"


def tiresias(
    *,
    thresholds: tuple[float, ...] = (3250.0,),
    promote_knob: float | None = None,
    samples: tuple[float, ...] = (),
    two_dimensional: bool = True,
    pack_limit: float = 0.5,
) -> Tiresias:
    """Queues by attained service.

    Parameters
    ----------
    thresholds : between queues, ascending, device-seconds. The paper finds two queues enough; the authors' program has
        three, with thresholds 3250 and 7200.
    promote_knob : a job that has waited this many times as long as it ran is promoted to the top queue; None for never.
    samples : service of earlier jobs, device-seconds. With it jobs of one queue go by their Gittins index, else by their
        start.
    two_dimensional : whether service counts devices; if not, it is time alone.
    pack_limit : PackLimit: share of the largest tensor above which a model's jobs are consolidated.

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
    return Tiresias(thresholds, knob, samples, two_dimensional, pack_limit)
