"""Baselines: queues in one order.

References
----------
FIFO, shortest job first, shortest remaining time first and least attained service are textbook disciplines; L. Kleinrock,
"Queueing Systems, Volume 2", Wiley 1976, chapter 4.

EASY backfilling: D. A. Lifka, "The ANL/IBM SP Scheduling System", JSSPP 1995. Conservative backfilling: D. G. Feitelson
and A. Mu'alem Weil, "Utilization and Predictability in Scheduling the IBM SP2 with Backfilling", IPPS 1998. Both:
A. W. Mu'alem and D. G. Feitelson, IEEE TPDS 12(6), 2001. Slurm differs in that it keeps whole nodes for jobs that wait,
plans at intervals, and computes priorities anew while jobs wait. Here it is devices, at every event, by the priorities of
the trace.

Fidelity: exact.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from trainyard.fleet import compiled_policy
from trainyard.fleet.errors import FleetError
from trainyard.fleet.periods import check_period
from trainyard.fleet.policies.queues.backfill import Backfilling
from trainyard.fleet.policies.queues.backfill_jobs import NEEDS_OF, Order, urgency
from trainyard.fleet.policy import Priority
from trainyard.fleet.snapshot import Floats, Need, Snapshot
from trainyard.reading import shown
from trainyard.reading.arguments import name_list

_TIME_LEFT: frozenset[Need] = frozenset({"length", "speed"})


def fifo(
    backfill: bool | Literal["easy", "conservative"] = False,
    one_queue: bool = False,
    order: Order = "arrival",
    max_jobs: int | None = None,
    preemptible: tuple[str, ...] = (),
) -> Priority | Backfilling:
    """First in, first out, with or without backfilling.

    Parameters
    ----------
    backfill : whether later jobs may start before a job that does not fit. True: any that fits ("first job fit"). "easy":
        one that does not delay the first waiting job, by the time limits of jobs (`EasyPlan`). "conservative": one that
        delays no job before it (`ConservativePlan`).
    one_queue : whether a job that does not fit holds up all jobs behind it. By default it holds up those that could use
        some of the same nodes, as if every type and every partition had its own queue. With "conservative" every job has
        a reservation, and none is held up.
    order : "arrival", or "priority": priority plus that of the job's QOS, the largest first, then by arrival.
    max_jobs : under conservative backfilling, the number of waiting jobs that are planned (``bf_max_job_test`` of Slurm);
        by default all.
    preemptible : partitions whose jobs lose their devices when a job of another partition finds no place without them
        (a lower ``PriorityTier`` of Slurm, with ``PreemptMode=REQUEUE``). It goes with ``backfill=True``.

    Raises
    ------
    FleetError
        If ``max_jobs`` is below 1, or an option does not go with this way of backfilling.
    """
    if preemptible:
        return _preempting(name_list("preemptible", preemptible), backfill, order)
    if max_jobs is not None and (backfill != "conservative" or max_jobs < 1):
        raise FleetError(
            f"max_jobs={shown(max_jobs)} with backfill={backfill!r}; allowed is a whole number of at least 1, with "
            "backfill='conservative'"
        )
    if backfill == "conservative":
        if one_queue:
            raise FleetError(
                "backfill='conservative' reserves devices for every job, so that none holds up others; leave "
                "one_queue out"
            )
        return Backfilling("all", order, max_jobs=max_jobs)
    if backfill == "easy":
        return Backfilling("first", order, one_queue)
    return Priority(
        (lambda s: s.arrival_s) if order == "arrival" else (lambda s: -urgency(s)),
        NEEDS_OF[order],
        backfill=backfill,
        one_queue=one_queue,
        in_turn=order == "arrival",
        compiled_key=compiled_policy.BY_ARRIVAL if order == "arrival" else None,
    )


def _preempting(preemptible: tuple[str, ...], backfill: bool | str, order: Order) -> Priority:
    """Return the policy that stops jobs of some partitions for those of others."""
    if backfill is not True:
        raise FleetError(
            f"preemptible={shown(preemptible)} with backfill={backfill!r}; allowed is backfill=True: a job that waits "
            "for more than it can take from others holds up nobody"
        )

    def place_in_queue(snapshot: Snapshot) -> Floats:
        partitions = snapshot.group("virtual_cluster")
        is_preemptible = np.isin(snapshot.groups("virtual_cluster"), preemptible)[partitions]
        first = -urgency(snapshot) if order == "priority" else snapshot.arrival_s
        in_order = np.lexsort((snapshot.arrival_s, first, snapshot.held == 0, is_preemptible))
        return in_order.argsort().astype(np.float64)

    named = tuple(("virtual_cluster", name) for name in preemptible)
    return Priority(place_in_queue, NEEDS_OF[order], preempts=True, named=named)


def sjf() -> Priority:
    """Shortest job first: of those that wait, the one that takes least time; nothing is preempted.

    That is time on the devices that it asks for, on the type where it is fastest, whatever it gets.
    """
    return Priority(lambda s: s.left_s, _TIME_LEFT, compiled_key=compiled_policy.BY_TIME_LEFT)


def srtf(by_device_time: bool = False, steady: bool = False) -> Priority:
    """Shortest remaining time first, preempting; by devices times time if ``by_device_time``.

    What remains is time on the devices that a job asks for, on the type where it is fastest. Of equal jobs the first to
    arrive comes first, or with ``steady`` the one that came first at the last decision: the rule of Tiresias' simulator,
    which sorts one list again and again.
    """
    key, compiled_key = (lambda s: s.left_s), compiled_policy.BY_TIME_LEFT
    if by_device_time:
        key, compiled_key = (lambda s: s.left_s * s.num_devices), compiled_policy.BY_DEVICE_TIME_LEFT
    return Priority(key, _TIME_LEFT, preempts=True, steady=steady, compiled_key=compiled_key)


def las(by_device_time: bool = False, quantum_s: float = 60.0) -> Priority:
    """Least attained service first, preempting, looked at every ``quantum_s``; by devices times time if wanted."""
    check_period("a quantum of las", quantum_s, endless=True)
    key, compiled_key = (lambda s: s.attained_s), compiled_policy.BY_TIME_ATTAINED
    if by_device_time:
        key, compiled_key = (lambda s: s.attained_device_s), compiled_policy.BY_DEVICE_TIME_ATTAINED
    return Priority(key, preempts=True, quantum_s=quantum_s, compiled_key=compiled_key)
