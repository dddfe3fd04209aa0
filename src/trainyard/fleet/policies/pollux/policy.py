"""Pollux: devices by goodput, the product of throughput and statistical efficiency.

Every job fits a model of its own speed while it runs, measures the noise of its gradients, and takes on whatever devices
it has the batch size (and by AdaScale's rule the learning rate) at which it gets on best. The scheduler knows those
models, and so how a job would get on elsewhere, adapted to that. Every round it searches for the matrix of jobs and nodes
in which the power mean of all jobs' speedups is greatest.

References
----------
A. Qiao, S. K. Choe, S. J. Subramanya, W. Neiswanger, Q. Ho, H. Zhang, G. R. Ganger, E. P. Xing, "Pollux: Co-adaptive
Cluster Scheduling for Goodput-Optimized Deep Learning", OSDI 2021.

Notes
-----
The objective and the search are the paper's (section 4.2.1). The authors' own program makes children of allocations in
another way, and finds more: `trainyard.fleet.replicas.pollux` has it, and by how much.

A job that cannot be resized gets its gang or nothing. For devices of one type, as in the paper.

Fidelity: simplified. Left out: growing and shrinking of the cluster (section 4.2.2).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from trainyard.fleet.allocation import Allocation, Placed, Reasons
from trainyard.fleet.errors import FleetError, require_one_type
from trainyard.fleet.known import KnownJob
from trainyard.fleet.place.keep import keeping
from trainyard.fleet.policies.pollux.genetic import (
    Allocations,
    Floats,
    Ints,
    Problem,
    allocations,
    carried_over,
    search,
)
from trainyard.fleet.snapshot import Need, Snapshot
from trainyard.fleet.traits import Traits
from trainyard.fleet.workload.goodput import Models, Report
from trainyard.hardware.cluster import Cluster

Row = list[tuple[int, int]]


@dataclass(frozen=True, eq=False)
class Searched:
    """What the next round goes on from.

    Attributes
    ----------
    num_rounds : that were decided; each takes its own random numbers from that.
    jobs : serial numbers of the jobs that the population has rows of.
    population : the last one, best first.
    away : nodes that could not be used.
    """

    num_rounds: int = 0
    jobs: tuple[int, ...] = ()
    population: Allocations | None = None
    away: frozenset[int] = frozenset()


_MOST_SEARCHED = 10_000


@dataclass(frozen=True)
class Pollux:
    """The scheduler of Pollux; for rounds of ``interval_s``.

    Attributes
    ----------
    fairness : the power p of the mean; 1 is the sum, minus infinity (-1e999) the least of all speedups. Not 0.
    restart_s : the delay that a job is expected to have whenever its devices change.
    interval_s : time between two decisions, the length of the rounds.
    num_generations, population : of the search.
    seed : of its random numbers.
    """

    fairness: float = -1.0
    restart_s: float = 30.0
    interval_s: float = 60.0
    num_generations: int = 100
    population: int = 100
    seed: int = 0
    needs: frozenset[Need] = field(default=frozenset({"reports"}), init=False)
    preempts: bool = field(default=True, init=False)

    def __post_init__(self) -> None:
        if self.fairness in (0.0, np.inf) or np.isnan(self.fairness):
            raise FleetError(
                f"the fairness of speedups must be a number other than 0, or minus infinity, got {self.fairness}; -1 is "
                "the paper's"
            )
        for name in ("num_generations", "population"):
            if not 1 <= (count := getattr(self, name)) <= _MOST_SEARCHED:
                raise FleetError(
                    f"{name} of pollux is a whole number from 1 to {_MOST_SEARCHED:,}, got {count:,}; 100 is the paper's"
                )

    @property
    def traits(self) -> Traits:
        """A round is the time between two decisions."""
        return Traits(round_s=self.interval_s, places=True)

    def start(self, cluster: Cluster) -> Searched:
        """Nothing is known.

        Raises
        ------
        FleetError
            If there are several types of devices.
        """
        require_one_type(cluster, "Pollux")
        return Searched()

    def decide(self, snapshot: Snapshot, state: Searched) -> tuple[Allocation, Searched]:
        """The best allocation that is found (section 4.2.1)."""
        order = np.lexsort((snapshot.arrival_s, snapshot.attained_device_s))
        jobs = [snapshot.jobs[i] for i in order]
        serials = tuple(snapshot.serial[order].tolist())
        problem = self._problem(snapshot, order, jobs)
        start = problem.current
        if state.population is not None and state.away == snapshot.cluster.away:
            former = {serial: i for i, serial in enumerate(state.jobs)}
            start = carried_over(state.population, np.array([former.get(s, -1) for s in serials], np.int32))
        seed = int(np.random.SeedSequence((self.seed, state.num_rounds)).generate_state(1)[0])
        found, _ = self.search(problem, start, seed)
        counts = [dict(row) for row in found.rows(0)]
        devices = keeping(snapshot.cluster, counts, [snapshot.grants[i] for i in order])
        waiting = np.sort(order[[not row for row in counts]])
        again_s = snapshot.now_s + self.interval_s
        allocation = Allocation(Placed(order, devices), again_s, reasons=Reasons(waiting, _why))
        return allocation, Searched(state.num_rounds + 1, serials, found, snapshot.cluster.away)

    def search(self, problem: Problem, start: Allocations, seed: int) -> tuple[Allocations, Floats]:
        """Allocations that are good, best first, and the fitness of each."""
        return search(problem, start, seed, self.num_generations, self.population)

    def _problem(self, snapshot: Snapshot, order: np.ndarray, jobs: list[KnownJob]) -> Problem:
        """What a good allocation is for jobs, in an order."""
        cluster = snapshot.cluster
        reports = [_report(snapshot.reports[i]) for i in order]
        least = np.array([job.least_devices for job in jobs], np.int32)
        most = np.array([job.most_devices for job in jobs], np.int32)
        # A job is tried on at most twice the devices that it knows (section 4.1).
        seen = np.array([report.most_devices if report else 0 for report in reports], np.int32)
        seen = np.maximum(seen, snapshot.held[order])
        most = np.minimum(np.minimum(most, np.maximum(least, 2 * seen)), cluster.num_devices).astype(np.int32)
        age_s = snapshot.now_s - snapshot.arrival_s[order]
        lost_s = snapshot.num_restarts[order] * self.restart_s
        return Problem(
            sizes=cluster.devices_per_node.astype(np.int32),
            current=allocations(_current_rows(snapshot, order), cluster.num_devices),
            speedup=_speedups(reports, most, cluster),
            realloc_factor=np.maximum(age_s - lost_s, 0.0) / (age_s + self.restart_s),
            least=least,
            most=most,
            fairness=self.fairness,
        )


def _why(job: int) -> str:
    return "in the best allocation that was found, other jobs get on better with the devices"


def _current_rows(snapshot: Snapshot, order: np.ndarray) -> list[Row]:
    """Devices of each node that every job has."""
    rows: list[Row] = []
    for i in order.tolist():
        grant = snapshot.grants[i]
        nodes = snapshot.cluster.node_of[list(grant.devices)] if grant else np.zeros(0, np.int64)
        rows.append(list(zip(*(x.tolist() for x in np.unique(nodes, return_counts=True)), strict=True)))
    return rows


def _report(report: object) -> Report | None:
    """What a job measured; None for one that has not, or cannot."""
    return report if isinstance(report, Report) and report.noise is not None else None


def _speedups(reports: Sequence[Report | None], most: Ints, cluster: Cluster) -> Floats:
    """[job, on several nodes, devices]: goodput there over that on a fair share, both at the best batch size.

    Of a job that has measured nothing yet, devices are taken to speed it up evenly.
    """
    fair = -(-cluster.num_devices // len(reports))
    found = np.empty((len(reports), 2, int(most.max()) + 1))
    found[:] = np.arange(found.shape[2]) / fair
    known = [j for j, report in enumerate(reports) if report is not None]
    if known:
        models = Models.of([report for report in reports if report is not None])
        share = np.minimum(fair, models.limits[:, 1] // models.limits[:, 2]).astype(np.int64)
        alone = models.goodputs_at(share > cluster.devices_per_node.max(), share)
        predicted = models.goodputs(most[known].astype(np.int64))
        found[known, :, : predicted.shape[2]] = predicted / alone[:, None, None]
    return found
