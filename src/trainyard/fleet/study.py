"""Policies over many drawn workloads: means with confidence intervals, and whether differences are more than chance."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import compress
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainyard.fleet.catalog import split_policies
from trainyard.fleet.mechanism.costs import Costs
from trainyard.fleet.records import FleetRun
from trainyard.fleet.setting import setting_of
from trainyard.fleet.simulation.crowding import Crowding
from trainyard.fleet.simulation.hazards import Hazards
from trainyard.fleet.site import Site
from trainyard.fleet.workload.job import Job

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
    completion_s, median_s, p99_s : mean, median and 99th percentile of completion times.
    queueing_s : mean time before the first devices.
    makespan_s : when the last job ends.
    utilisation, wronged : share of devices' time in use, share of jobs that an equal share of the cluster would have
        served better.
    unfairness : largest ratio of a completion time to that with an equal share.
    num_missed : jobs that did not end by their deadline.
    num_refused : jobs that were turned away.
    to_best : mean completion time over that of the best policy on the same jobs; the interval is of pairs, which
        differ less than workloads do.
    virtual_clusters : figures of the jobs of each, over the seeds that have any, by the names above; empty where there
        are no two.
    """

    policy: str
    completion_s: Interval
    median_s: Interval
    p99_s: Interval
    queueing_s: Interval
    makespan_s: Interval
    utilisation: Interval
    wronged: Interval
    unfairness: Interval
    num_missed: Interval
    num_refused: Interval
    to_best: Interval
    virtual_clusters: Mapping[str, Mapping[str, Interval]]


_FIGURES: Mapping[str, Callable[[FleetRun], float]] = MappingProxyType(
    {
        "completion_s": lambda run: run.mean_completion_s,
        "median_s": lambda run: run.percentile_s(50),
        "p99_s": lambda run: run.percentile_s(99),
        "queueing_s": lambda run: run.mean_queueing_s,
        "makespan_s": lambda run: run.makespan_s,
        "utilisation": lambda run: run.utilisation,
        "wronged": lambda run: run.wronged,
        "unfairness": lambda run: run.worst_unfairness,
        "num_missed": lambda run: run.num_missed,
        "num_refused": lambda run: len(run.refused),
    }
)
"""What is compared, by attribute of `Standing`."""
_OF_PARTS = (
    "completion_s", "median_s", "p99_s", "queueing_s", "wronged", "unfairness", "num_missed", "num_refused",
)  # fmt: skip
"""Those of them that are of jobs, not of devices: what is said of every virtual cluster."""


def study(
    policies: str,
    workload: Callable[[int], Sequence[Job]],
    site: Site,
    seeds: Sequence[int],
    tell: Callable[[int, int], None] = lambda done, count: None,
    *,
    place: str | None = None,
    round_s: float | None = None,
    costs: Costs | None = None,
    hazards: Hazards | None = None,
    crowding: Crowding | None = None,
) -> tuple[Standing, ...]:
    """Simulate policies on workloads that differ in their seed only; the best comes first.

    Who refuses fewer jobs is better, and of equal ones who has the shorter mean completion time.

    Parameters
    ----------
    policies : as `split_policies` reads them.
    workload : jobs of a seed.
    tell : hears how many of the simulations are done.
    place, round_s, costs, hazards, crowding : of all simulations; what goes wrong is drawn by the seed of the workload.
    """
    from trainyard.job.auto.forked import map_forked

    settings = [setting_of(name, place, round_s) for name in split_policies(policies)]
    cases = [(number, seed) for seed in seeds for number in range(len(settings))]

    def simulated(case: tuple[int, int]) -> tuple[Floats, dict[str, Floats]]:
        number, seed = case
        wrong = replace(hazards or Hazards(), seed=seed)
        run = settings[number].simulate(workload(seed), site, costs=costs, hazards=wrong, crowding=crowding)
        return _figures(run, tuple(_FIGURES)), {
            cluster: _figures(part, _OF_PARTS) for cluster, part in _parts(run).items()
        }

    found: list[Floats] = []
    parts: list[dict[str, Floats]] = []
    for figures, of_parts in map_forked(simulated, cases):
        found.append(figures)
        parts.append(of_parts)
        tell(len(found), len(cases))
    # [seed, policy, figure]
    figures = np.array(found).reshape(len(seeds), len(settings), -1)
    mean = dict(zip(_FIGURES, figures.mean(axis=0).T, strict=True))
    order = np.lexsort((mean["completion_s"], mean["num_refused"])).tolist()
    standings = []
    for i in order:
        to_best = Interval.of(figures[:, i, 0] / figures[:, order[0], 0])
        intervals = dict(zip(_FIGURES, map(Interval.of, figures[:, i].T), strict=True))
        by_part = _intervals_of_parts(parts[i :: len(settings)])
        standings.append(Standing(settings[i].text, to_best=to_best, virtual_clusters=by_part, **intervals))
    return tuple(standings)


def _figures(run: FleetRun, names: Sequence[str]) -> Floats:
    return np.array([_FIGURES[name](run) for name in names])


def _parts(run: FleetRun) -> dict[str, FleetRun]:
    """The jobs of each virtual cluster, as if they were all; nothing where there are no two."""
    names = sorted({*run.virtual_clusters, *run.refused_clusters} - {""})
    return {name: _part(run, name) for name in names} if len(names) > 1 else {}


def _part(run: FleetRun, cluster: str) -> FleetRun:
    """The jobs of one virtual cluster."""
    ran, refused = (
        [each == cluster for each in column] for column in (run.virtual_clusters, run.refused_clusters)
    )
    kept: dict[str, Any] = {}
    for field in fields(run):
        column, which = getattr(run, field.name), refused if field.name.startswith("refused") else ran
        if isinstance(column, np.ndarray):
            kept[field.name] = column[which]
        elif field.name in ("names", "virtual_clusters", "refused", "refused_clusters"):
            kept[field.name] = tuple(compress(column, which))
    return replace(run, spans=(), **kept)


def _intervals_of_parts(runs: Sequence[Mapping[str, Floats]]) -> dict[str, dict[str, Interval]]:
    """By virtual cluster and figure, from the runs of a policy."""
    return {
        name: dict(
            zip(
                _OF_PARTS,
                map(Interval.of, np.array([run[name] for run in runs if name in run]).T),
                strict=True,
            )
        )
        for name in sorted({name for run in runs for name in run})
    }
