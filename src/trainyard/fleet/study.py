"""Policies over many drawn workloads: means with confidence intervals, and whether differences are more than chance."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from trainyard.fleet.catalog import split_policies
from trainyard.fleet.records import FleetRun
from trainyard.fleet.setting import setting_of
from trainyard.fleet.site import FleetError, Site
from trainyard.fleet.workload.generate import helios_jobs, philly_jobs
from trainyard.fleet.workload.job import Job

Floats = NDArray[np.float64]

GENERATORS: MappingProxyType[str, Callable[..., Iterator[Job]]] = MappingProxyType(
    {"philly": philly_jobs, "helios": helios_jobs}
)
"""Generators of jobs with published distributions, by name."""

_SAMPLE = 50_000


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
    completion_s, median_s, p99_s : mean, median and 99th percentile of completion times.
    queueing_s : mean time before the first devices.
    makespan_s : when the last job ends.
    utilisation, wronged : share of devices' time in use, share of jobs that an equal share of the cluster would have
        served better.
    num_missed : jobs that did not end by their deadline.
    num_refused : jobs that were turned away.
    to_best : mean completion time over that of the best policy on the same jobs; the interval is of pairs, which
        differ less than workloads do.
    """

    policy: str
    completion_s: Interval
    median_s: Interval
    p99_s: Interval
    queueing_s: Interval
    makespan_s: Interval
    utilisation: Interval
    wronged: Interval
    num_missed: Interval
    num_refused: Interval
    to_best: Interval


_FIGURES: Mapping[str, Callable[[FleetRun], float]] = MappingProxyType(
    {
        "completion_s": lambda run: run.mean_completion_s,
        "median_s": lambda run: run.percentile_s(50),
        "p99_s": lambda run: run.percentile_s(99),
        "queueing_s": lambda run: run.mean_queueing_s,
        "makespan_s": lambda run: run.makespan_s,
        "utilisation": lambda run: run.utilisation,
        "wronged": lambda run: run.wronged,
        "num_missed": lambda run: run.num_missed,
        "num_refused": lambda run: len(run.refused),
    }
)
"""What is compared, by attribute of `Standing`."""


def drawn_jobs(workload: str, num_jobs: int, load: float, site: Site, seed: int) -> list[Job]:
    """Jobs whose arrivals would keep a share of a cluster busy for ever.

    Parameters
    ----------
    workload : name in ``GENERATORS``; gangs larger than the cluster are not drawn.
    load : devices times time that come in, over what the cluster has.

    Raises
    ------
    FleetError
        If the workload is unknown or the load not above 0.
    """
    if workload not in GENERATORS:
        raise FleetError(f"unknown workload {workload!r}; there are {', '.join(GENERATORS)}")
    if load <= 0 or num_jobs < 1:
        raise FleetError(f"a workload has at least one job and a load above 0, got {num_jobs} and {load}")
    generate, most = GENERATORS[workload], int(site.devices_of_type.max())
    gap_s = _mean_device_s(workload, most) / (load * site.num_devices)
    return list(generate(num_jobs, seed, mean_gap_s=gap_s, most_devices=most))


@cache
def _mean_device_s(workload: str, most: int) -> float:
    """Of the distribution, so that all seeds have the same load."""
    sample = GENERATORS[workload](_SAMPLE, 0, most_devices=most)
    return float(np.mean([job.num_devices * job.work for job in sample]))


def study(
    policies: str,
    workload: Callable[[int], Sequence[Job]],
    site: Site,
    seeds: Sequence[int],
    tell: Callable[[int, int], None] = lambda done, count: None,
) -> tuple[Standing, ...]:
    """Simulate policies on workloads that differ in their seed only; the best comes first.

    Who refuses fewer jobs is better, and of equal ones who has the shorter mean completion time.

    Parameters
    ----------
    policies : as `split_policies` reads them.
    workload : jobs of a seed.
    tell : hears how many of the simulations are done.
    """
    from trainyard.job.auto.forked import map_forked

    settings = [setting_of(name) for name in split_policies(policies)]
    cases = [(number, seed) for seed in seeds for number in range(len(settings))]

    def simulated(case: tuple[int, int]) -> Floats:
        number, seed = case
        run = settings[number].simulate(workload(seed), site)
        return np.array([figure(run) for figure in _FIGURES.values()])

    found = []
    for figures in map_forked(simulated, cases):
        found.append(figures)
        tell(len(found), len(cases))
    # [seed, policy, figure]
    figures = np.array(found).reshape(len(seeds), len(settings), -1)
    mean = dict(zip(_FIGURES, figures.mean(axis=0).T, strict=True))
    order = np.lexsort((mean["completion_s"], mean["num_refused"])).tolist()
    standings = []
    for i in order:
        to_best = Interval.of(figures[:, i, 0] / figures[:, order[0], 0])
        intervals = dict(zip(_FIGURES, map(Interval.of, figures[:, i].T), strict=True))
        standings.append(Standing(settings[i].text, to_best=to_best, **intervals))
    return tuple(standings)
