"""Policies over many drawn workloads: means with confidence intervals, and whether differences are more than chance."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainyard.fleet.errors import FleetError, UnfitJobError
from trainyard.fleet.groups import DIMENSIONS, groups
from trainyard.fleet.mechanism.costs import Costs
from trainyard.fleet.mechanism.crowding import Crowding
from trainyard.fleet.mechanism.hazards import Hazards
from trainyard.fleet.records import FleetRun
from trainyard.fleet.scheduler import (
    CannotRun,
    Ignored,
    Scheduler,
    baseline_of,
    ignored_by,
    schedulers_of,
)
from trainyard.fleet.workload.job import Job
from trainyard.hardware.cluster import Cluster
from trainyard.shown import ShownOnPage

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Interval:
    """A mean over seeds, and half the width of its 95 % confidence interval (Student's t)."""

    mean: float
    half_width: float

    @classmethod
    def of(cls, values: Floats) -> Interval:
        """From one value per seed; of a single one the interval is infinite."""
        from scipy.stats import t

        count = len(values)
        if count < 2:
            return cls(float(values.mean()), float("inf"))
        error = float(values.std(ddof=1)) / count**0.5
        return cls(float(values.mean()), float(t.ppf(0.975, count - 1)) * error)


@dataclass(frozen=True, eq=False)
class Standing:
    """A policy over all seeds.

    Attributes
    ----------
    placement : how jobs are placed, in words.
    completion_s, median_s, p99_s : mean, median and 99th percentile of completion times.
    waiting_s, first_wait_s : mean time without devices, and before the first ones.
    slowdown : mean of completion times over the times that jobs take on their gangs without waiting.
    makespan_s : from the first arrival to the last end.
    busy, useful : shares of devices' time in which jobs had them, and in which work was done that counts.
    wronged : share of jobs that an equal share of the cluster would have served better.
    unfairness : largest ratio of a completion time to that with an equal share.
    num_missed : jobs that did not end by their deadline.
    num_refused, num_left_out : jobs that were turned away, and that can never run here.
    to_best, to_baseline : mean completion time over that of the best policy, and over that of the baseline, on the same
        jobs; the interval is of pairs, which differ less than workloads do.
    groups : figures of the jobs of each group, by dimension and group, over the seeds that have any, by the names above;
        see `trainyard.fleet.groups`.
    """

    policy: str
    placement: str
    completion_s: Interval
    median_s: Interval
    p99_s: Interval
    waiting_s: Interval
    first_wait_s: Interval
    slowdown: Interval
    makespan_s: Interval
    busy: Interval
    useful: Interval
    wronged: Interval
    unfairness: Interval
    num_missed: Interval
    num_refused: Interval
    num_left_out: Interval
    to_best: Interval
    to_baseline: Interval
    groups: Mapping[str, Mapping[str, Mapping[str, Interval]]]


@dataclass(frozen=True, repr=False)
class Study(ShownOnPage):
    """Policies over many workloads.

    Attributes
    ----------
    standings : of those that ran, the best first.
    baseline : the policy with which the others are compared.
    refused : those that cannot run so.
    ignored : attributes of jobs of the first workload that policies ignore.
    """

    standings: tuple[Standing, ...]
    baseline: str
    refused: tuple[CannotRun, ...]
    ignored: tuple[Ignored, ...]


_FIGURES: Mapping[str, Callable[[FleetRun], float]] = MappingProxyType(
    {
        "completion_s": lambda run: run.mean_completion_s,
        "median_s": lambda run: run.percentile_s(50),
        "p99_s": lambda run: run.percentile_s(99),
        "waiting_s": lambda run: run.mean_waiting_s,
        "first_wait_s": lambda run: run.mean_first_wait_s,
        "slowdown": lambda run: run.mean_slowdown,
        "makespan_s": lambda run: run.makespan_s,
        "busy": lambda run: run.busy,
        "useful": lambda run: run.useful,
        "wronged": lambda run: run.wronged,
        "unfairness": lambda run: run.worst_unfairness,
        "num_missed": lambda run: run.num_missed,
        "num_refused": lambda run: len(run.refused),
        "num_left_out": lambda run: len(run.left_out),
    }
)
"""Figures that are compared, by attribute of `Standing`."""
_OF_GROUPS = (
    "completion_s", "median_s", "p99_s", "waiting_s", "first_wait_s", "slowdown", "wronged", "unfairness", "num_missed",
    "num_refused",
)  # fmt: skip
"""Figures of jobs, not of devices, which each group has."""
Group = tuple[str, str]
"""A dimension, and one of its groups."""


def study(
    policies: str,
    workload: Callable[[int], Sequence[Job]],
    cluster: Cluster,
    seeds: Sequence[int],
    tell: Callable[[int, int], None] = lambda done, count: None,
    *,
    baseline: str | None = None,
    place: str | None = None,
    round_s: float | None = None,
    costs: Costs | None = None,
    hazards: Hazards | None = None,
    crowding: Crowding | None = None,
    strict: bool = False,
) -> Study:
    """Simulate policies on workloads that differ in their seed only; the best comes first.

    Who refuses fewer jobs is better, and of equal ones who has the shorter mean completion time. A policy that cannot run
    on one of the workloads is left out, and it is said why.

    Parameters
    ----------
    policies : as `split_policies` reads them.
    workload : jobs of a seed.
    tell : hears how many of the simulations are done.
    baseline : the policy with which the others are compared; by default the first that runs.
    place, round_s, costs, hazards, crowding, strict : of all simulations; what goes wrong is drawn by the seed of the
        workload.

    Raises
    ------
    FleetError
        If a policy or the baseline is unknown, or none can be set up so.
    """
    from trainyard.job.auto.forked import map_forked

    schedulers, refused = schedulers_of(policies, place, round_s)
    baseline_of(policies, baseline)
    cases = [(number, seed) for seed in seeds for number in range(len(schedulers))]

    def simulated(case: tuple[int, int]) -> _Figures | _Failure:
        number, seed = case
        wrong = replace(hazards or Hazards(), seed=seed)
        conditions = {"costs": costs, "hazards": wrong, "crowding": crowding, "strict": strict}
        return _simulated(schedulers[number], workload(seed), cluster, conditions)

    found: list[_Figures | _Failure] = []
    for result in map_forked(simulated, cases):
        found.append(result)
        tell(len(found), len(cases))
    done, failed = _sorted_out(schedulers, found)
    first = baseline_of(policies, baseline, tuple(done))
    ran = [scheduler for scheduler in schedulers if scheduler.text in done]
    ignored = ignored_by(ran, workload(seeds[0]), cluster)
    return Study(_standings(done, first), first, (*refused, *failed), ignored)


class _Figures(NamedTuple):
    """Figures that a study keeps of a run: of all jobs, of each group, and the placement."""

    of_all: Floats
    of_groups: Mapping[Group, Floats]
    placement: str


class _Failure(NamedTuple):
    """Why a policy did not run, and whether that stops the study."""

    why: str
    stops: bool


def _simulated(
    scheduler: Scheduler, jobs: Sequence[Job], cluster: Cluster, conditions: Mapping[str, Any]
) -> _Figures | _Failure:
    """A run of the study; ``conditions`` are options of `Scheduler.simulate`."""
    try:
        run = scheduler.simulate(jobs, cluster, **conditions)
    except FleetError as error:
        return _Failure(str(error), conditions["strict"] and isinstance(error, UnfitJobError))
    parts = {
        (dimension, name): _figures(part, _OF_GROUPS)
        for dimension in DIMENSIONS
        for name, part in groups(run, dimension).items()
    }
    return _Figures(_figures(run, tuple(_FIGURES)), parts, run.placement)


def _sorted_out(
    schedulers: Sequence[Scheduler], found: Sequence[_Figures | _Failure]
) -> tuple[dict[str, list[_Figures]], list[CannotRun]]:
    """Sort results by policy: those that ran on all workloads, and the others; policies take turns in ``found``.

    Raises
    ------
    FleetError
        If a failure stops the study.
    """
    done, failed = dict[str, list[_Figures]](), list[CannotRun]()
    for number, scheduler in enumerate(schedulers):
        results = found[number :: len(schedulers)]
        if failure := next((each for each in results if isinstance(each, _Failure)), None):
            if failure.stops:
                raise FleetError(failure.why)
            failed.append(CannotRun(scheduler.text, failure.why))
        else:
            done[scheduler.text] = [each for each in results if isinstance(each, _Figures)]
    return done, failed


def _standings(done: Mapping[str, Sequence[_Figures]], baseline: str) -> tuple[Standing, ...]:
    """From the figures of every policy and seed, of all jobs and by group."""
    # By policy: [seed, figure].
    figures = {name: np.array([each.of_all for each in results]) for name, results in done.items()}
    place = {name: i for i, name in enumerate(_FIGURES)}

    def rank(name: str) -> tuple[float, float]:
        mean = figures[name].mean(axis=0)
        return mean[place["num_refused"]] + mean[place["num_left_out"]], mean[place["completion_s"]]

    standings = []
    for name in (order := sorted(done, key=rank)):
        to_best, to_baseline = (
            Interval.of(_over(figures[name][:, 0], figures[other][:, 0])) if other in figures else _UNKNOWN
            for other in (order[0], baseline)
        )
        intervals = dict(zip(_FIGURES, map(Interval.of, figures[name].T), strict=True))
        by_group = _by_group(
            [each.of_groups for each in done[name]], [each.of_groups for each in done.get(baseline, ())]
        )
        standings.append(
            Standing(
                name,
                done[name][0].placement,
                to_best=to_best,
                to_baseline=to_baseline,
                groups=by_group,
                **intervals,
            )
        )
    return tuple(standings)


def _over(values: Floats, others: Floats) -> Floats:
    """Ratios; 1 where the other is 0."""
    return np.divide(values, others, out=np.ones_like(values), where=others > 0)


def _figures(run: FleetRun, names: Sequence[str]) -> Floats:
    return np.array([_FIGURES[name](run) for name in names])


def _by_group(
    runs: Sequence[Mapping[Group, Floats]], baseline: Sequence[Mapping[Group, Floats]]
) -> dict[str, dict[str, dict[str, Interval]]]:
    """Intervals by dimension, group and figure, from the runs of a policy and those of the baseline."""
    found: dict[str, dict[str, dict[str, Interval]]] = {}
    for group in dict.fromkeys(group for run in runs for group in run):
        values = np.array([run[group] for run in runs if group in run])
        intervals = dict(zip(_OF_GROUPS, map(Interval.of, values.T), strict=True))
        both = [
            (run[group][0], other[group][0])
            for run, other in zip(runs, baseline, strict=False)
            if group in run and group in other
        ]
        if both:
            intervals["to_baseline"] = Interval.of(_over(*np.array(both).T))
        dimension, name = group
        found.setdefault(dimension, {})[name] = intervals
    return found


_UNKNOWN = Interval(float("nan"), float("inf"))
