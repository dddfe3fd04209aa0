"""The public functions of level 2: read or draw jobs, simulate them under policies, compare policies over many draws."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from trainyard.fleet.errors import FleetError, UnfitJobError
from trainyard.fleet.mechanism.costs import Costs
from trainyard.fleet.mechanism.crowding import Crowding
from trainyard.fleet.mechanism.hazards import Hazards
from trainyard.fleet.prices import prices_differ
from trainyard.fleet.recorded import recorded_run
from trainyard.fleet.records import FleetRun, ranked_runs
from trainyard.fleet.scheduler import CannotRun, Ignored, Scheduler, ignored_by, schedulers_of
from trainyard.fleet.study import Study, study
from trainyard.fleet.type_speeds import speeds_by_type, with_speeds
from trainyard.fleet.what_if import WhatIf, parse_what_ifs
from trainyard.fleet.workload.drawn import LOAD, NUM_JOBS, WORKLOAD, Draw, draw_of, drawn_jobs
from trainyard.fleet.workload.job import Job
from trainyard.fleet.workload.read import read_workload
from trainyard.hardware.cluster import Cluster
from trainyard.hardware.parse import cluster_of
from trainyard.reading.arguments import joined_names
from trainyard.reading.left_out import warn_of_rows
from trainyard.shown import ShownOnPage

__all__ = ["FleetComparison", "compare", "draw_jobs", "none_ran", "read_jobs", "simulate"]

POLICIES = "fifo,srtf,tiresias"
"""Policies that are compared where none are named."""
SEEDS = 10
"""Workloads that are drawn to compare policies."""


@dataclass(frozen=True, eq=False, repr=False)
class FleetComparison(ShownOnPage):
    """Policies on the same jobs and the same cluster.

    Attributes
    ----------
    cluster : the cluster.
    jobs : the jobs that came, in the order of arrival.
    runs : of the policies that ran, in the order in which they were named, then those of each what-if; last the run as
        the trace recorded it, if the trace says when jobs started.
    cannot_run : policies that cannot run so, and why.
    ignored : attributes of the jobs that policies ignore, and names in their options that no job has.
    """

    cluster: Cluster
    jobs: tuple[Job, ...]
    runs: tuple[FleetRun, ...]
    cannot_run: tuple[CannotRun, ...]
    ignored: tuple[Ignored, ...]

    @property
    def ranked(self) -> tuple[FleetRun, ...]:
        """Runs from the best to the worst, see `trainyard.fleet.records.ranked_runs`."""
        return ranked_runs(self.runs)

    @property
    def best(self) -> FleetRun:
        """First of the ranked runs.

        Raises
        ------
        FleetError
            If no policy could run.
        """
        if not self.runs:
            raise FleetError(none_ran(self.cannot_run))
        return self.ranked[0]

    def __getitem__(self, policy: str) -> FleetRun:
        """The run of a policy.

        Raises
        ------
        FleetError
            If the policy has no run.
        """
        for run in self.runs:
            if run.policy == policy:
                return run
        raise FleetError(
            f"there is no run of {policy!r}; there are {', '.join(run.policy for run in self.runs)}"
        )

    def rows(self) -> list[dict[str, Any]]:
        """The figures of each run in seconds and shares, best run first, as ``pandas.DataFrame`` takes them."""
        return [run.figures() for run in self.ranked]


def none_ran(cannot_run: Sequence[CannotRun]) -> str:
    """Say why the first of some policies could not run, where none could."""
    first, more = cannot_run[0], f" (and {len(cannot_run) - 1} more)" if len(cannot_run) > 1 else ""
    return f"no policy could run: {first.text}{more} refused: {first.why}"


def read_jobs(
    path: str | Path,
    cluster: Cluster | str | None = None,
    *,
    format: str | None = None,
    profiles: str | Path | None = None,
    limit: int | None = None,
    strict: bool = False,
    timezone: str | None = None,
    own_files: bool = False,
) -> list[Job]:
    """Read the jobs of a trace, in the order of arrival.

    A warning says if many rows of the trace gave no job.

    Parameters
    ----------
    path : a file of your own or of a public format, or a folder of such files.
    cluster : whose device types measured speeds are looked up for; needed by traces of Sia only.
    format, profiles, limit, strict, timezone, own_files : as of `trainyard.fleet.workload.read.read_workload`.

    Raises
    ------
    FleetError
        If the file cannot be read, or no row of it gives a job; the message says where, and what is allowed.
    """
    types = () if cluster is None else cluster_of(cluster).device_types
    speeds = None if profiles is None else Path(profiles)
    workload = read_workload(
        Path(path), format, speeds, limit, types, strict=strict, timezone=timezone, own_files=own_files
    )
    jobs = list(workload)
    warn_of_rows(workload.left_out)
    return jobs


def draw_jobs(
    cluster: Cluster | str,
    workload: str = WORKLOAD,
    num_jobs: int = NUM_JOBS,
    load: float = LOAD,
    seed: int = 0,
    profiles: str | Path | None = None,
) -> list[Job]:
    """Draw jobs of a published distribution that keep a share of a cluster busy.

    Parameters
    ----------
    cluster : or its text form, ``"8x8"``.
    workload : ``philly``, ``helios``, ``tiresias``, or ``gavel``, which needs profiles.
    load : work that comes in, over what the cluster can do.
    profiles : file of measured speeds.

    Raises
    ------
    FleetError
        If the workload is unknown, none of its jobs runs on the cluster, or a number is not above 0.
    """
    speeds = None if profiles is None else Path(profiles)
    return drawn_jobs(workload, num_jobs, load, cluster_of(cluster), seed, speeds)


def simulate(
    jobs: str | Path | Iterable[Job],
    cluster: Cluster | str,
    policies: str | Sequence[str] = "fifo",
    *,
    placement: str | None = None,
    round_s: float | None = None,
    costs: Costs | None = None,
    hazards: Hazards | None = None,
    crowding: Crowding | None = None,
    what_if: str | Sequence[str] = (),
    speeds: Mapping[str, float] | None = None,
    strict: bool = False,
    keep_spans: bool = False,
    tell: Callable[[str], None] = lambda policy: None,
) -> FleetComparison:
    """Simulate the same jobs under one or more policies, as ``trainyard fleet simulate`` does.

    Parameters
    ----------
    jobs : in the order of arrival; or the path of a trace, as `read_jobs` takes it.
    cluster : or its text form, ``"2x8xV100+4x4xK80"``.
    policies : names of the catalog, or ``FILE.py:NAME``, each with options in parentheses if it has any: a list, or text
        with commas between.
    placement : name of the rule that chooses devices for jobs; by default as the policy's paper does.
    round_s : seconds between decisions; by default the policy's own.
    costs, hazards, crowding : of starts and restarts; failures; how jobs of a node slow each other; by default none.
    what_if : changes of the cluster or the jobs, such as ``["+4x8xH100", "limit=24h"]``, read by `parse_what_if`: every
        policy runs with each of them, too, as ``"fifo, limit=24h"``.
    speeds : speeds of device types, as multiples of the speed of the devices for which the lengths of jobs are known;
        types that are not named have 1. Jobs with speeds of their own keep these.
    strict : a job that can never run is an error; by default it is left out and counted.
    keep_spans : note what ran where, for charts.
    tell : called with the name of each policy before it is simulated.

    Raises
    ------
    FleetError
        If a policy, the placement or the type of a speed is unknown, the trace or a what-if cannot be read, or a what-if
        takes away nodes that the cluster does not have. A policy that cannot run here is no error: the result names it.

    Examples
    --------
    >>> from trainyard.fleet import draw_jobs, simulate
    >>> found = simulate(draw_jobs("2x4", num_jobs=20), "2x4", ["fifo", "srtf"])
    >>> sorted(row["policy"] for row in found.rows())
    ['fifo', 'srtf']
    """
    place = cluster_of(cluster)
    schedulers, cannot = schedulers_of(joined_names("policies", policies, FleetError), placement, round_s)
    changes, factors = _changes(what_if, speeds, place)
    arrived = read_jobs(jobs, place, strict=strict) if isinstance(jobs, str | Path) else list(jobs)
    conditions: dict[str, Any] = {"costs": costs, "hazards": hazards, "crowding": crowding}
    conditions |= {"keep_spans": keep_spans, "strict": strict}
    scenarios = [_Scenario.of(*change, arrived, factors) for change in changes]
    runs, recorded = _simulated(schedulers, cannot, scenarios, conditions, tell), recorded_run(arrived, place)
    ran = {run.policy for run in runs}
    ignored = ignored_by([each for each in schedulers if each.text in ran], arrived, place)
    runs += [recorded] if runs and recorded is not None else []
    return FleetComparison(place, tuple(arrived), tuple(runs), tuple(cannot), ignored)


def _changes(
    what_if: str | Sequence[str], speeds: Mapping[str, float] | None, present: Cluster
) -> tuple[list[tuple[WhatIf, Cluster]], dict[str, float]]:
    """Return each what-if with its cluster, no change first, and speeds by device type of these clusters."""
    changes = [(change, change.cluster(present)) for change in (WhatIf(""), *parse_what_ifs(what_if))]
    return changes, speeds_by_type(speeds or {}, [cluster for _, cluster in changes])


class _Scenario(NamedTuple):
    """A what-if, or no change, with the jobs and the cluster on which all policies are simulated."""

    change: WhatIf
    jobs: Sequence[Job]
    cluster: Cluster

    @classmethod
    def of(
        cls, change: WhatIf, cluster: Cluster, jobs: Sequence[Job], speeds: Mapping[str, float]
    ) -> _Scenario:
        """Return a what-if on its cluster, with its changes made to the jobs."""
        return cls(change, with_speeds(change.jobs(jobs), cluster, speeds), cluster)

    def name(self, policy: str) -> str:
        """Return the name of the run of a policy."""
        return f"{policy}, {self.change.text}" if self.change.text else policy

    def prepared(self, scheduler: Scheduler, conditions: Mapping[str, Any]) -> Callable[[], FleetRun]:
        """Set up the run of a policy, or refuse it."""
        scheduler = replace(scheduler, policy=self.change.policy(scheduler.text, scheduler.policy, self.jobs))
        spans = conditions["keep_spans"] or prices_differ(self.cluster)
        run = scheduler.prepared(self.jobs, self.cluster, **{**conditions, "keep_spans": spans})
        return lambda: replace(run(), policy=self.name(scheduler.text), what_if=self.change.text)


def _simulated(
    schedulers: Sequence[Scheduler],
    cannot: list[CannotRun],
    scenarios: Sequence[_Scenario],
    conditions: Mapping[str, Any],
    tell: Callable[[str], None],
) -> list[FleetRun]:
    """The runs of the policies that can run so; the others are added to ``cannot``."""

    @contextmanager
    def refusal_is_noted(text: str) -> Iterator[None]:
        try:
            yield
        except UnfitJobError:
            raise
        except FleetError as error:
            cannot.append(CannotRun(text, str(error)))

    prepared, runs = [], list[FleetRun]()
    for scenario, scheduler in product(scenarios, schedulers):
        name = scenario.name(scheduler.text)
        with refusal_is_noted(name):
            prepared.append((name, scenario.prepared(scheduler, conditions)))
    for name, run in prepared:
        tell(name)
        with refusal_is_noted(name):
            runs.append(run())
    return runs


def compare(
    cluster: Cluster | str,
    policies: str | Sequence[str] = POLICIES,
    jobs: str | Path | Sequence[Job] | None = None,
    *,
    workload: str = WORKLOAD,
    num_jobs: int = NUM_JOBS,
    load: float = LOAD,
    profiles: str | Path | None = None,
    deadlines: tuple[float, float] | None = None,
    seeds: int = SEEDS,
    tell: Callable[[int, int], None] = lambda done, count: None,
    **options: Any,
) -> Study:
    """Rank policies over workloads drawn by chance, with confidence intervals, as ``trainyard fleet compare`` does.

    Parameters
    ----------
    cluster, policies : as of `simulate`.
    jobs : draw from these, or from a trace: whenever one arrives there, any of them does. By default workloads are drawn
        from a published distribution.
    workload, num_jobs, load, profiles : of the distribution, as of `draw_jobs`; not used with ``jobs``.
    deadlines : give jobs a deadline between two numbers of their lengths after they arrive; by default none.
    seeds : workloads to draw.
    tell : called with the numbers of finished and of all simulations.
    options : ``baseline``, ``place``, ``round_s``, ``costs``, ``hazards``, ``crowding``, ``strict`` of
        `trainyard.fleet.study.study`.

    Raises
    ------
    FleetError
        If a policy, the baseline or the workload is unknown, or none can be set up so.
    """
    place, names = cluster_of(cluster), joined_names("policies", policies, FleetError)
    if seeds < 1:
        raise FleetError(f"seeds is {seeds}; it is the number of workloads to draw, at least 1")
    draw: Draw
    if jobs is None:
        speeds = None if profiles is None else Path(profiles)
        draw = draw_of(
            place, None, deadlines, workload=workload, num_jobs=num_jobs, load=load, profiles=speeds
        )
    else:
        draw = draw_of(
            place, read_jobs(jobs, place) if isinstance(jobs, str | Path) else list(jobs), deadlines
        )
    return study(names, draw, place, range(seeds), tell, **options)
