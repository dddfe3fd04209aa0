"""The jobs of a run by whose they are and by what they ask for."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from trainyard.fleet.records import FleetRun, Submitted

__all__ = ["DIMENSIONS", "beside", "extra_waiting_s", "groups", "num_not_done", "of_both"]

Floats = NDArray[np.float64]


def _size(job: Submitted) -> str:
    """Devices that a job asks for, in steps of two: ``1``, ``2``, ``3 to 4``, ``5 to 8``."""
    most = 1 << (job.num_devices - 1).bit_length()
    return str(most) if most <= 2 else f"{most // 2 + 1} to {most}"


DIMENSIONS: Mapping[str, Callable[[Submitted], str]] = MappingProxyType(
    {
        "user": lambda job: job.user,
        "account": lambda job: job.account,
        "virtual cluster": lambda job: job.virtual_cluster,
        "qos": lambda job: job.qos,
        "devices": _size,
        "device type": lambda job: job.device_types or "any",
    }
)
"""Dimensions by which jobs are grouped, and the group of a job; "" for none. Virtual clusters of Slurm are partitions."""


def groups(run: FleetRun, dimension: str, fewest: int = 2) -> dict[str, FleetRun]:
    """The run of each group's jobs, as if they were all; nothing where there are fewer groups."""
    ran, refused = (_places(jobs, DIMENSIONS[dimension]) for jobs in (run.jobs, run.refused_jobs))
    names = sorted(
        {*ran, *refused} - {""},
        key=lambda name: (int(name.split()[-1]), "") if dimension == "devices" else (0, name),
    )
    return {name: run.of(ran[name], refused[name]) for name in names} if len(names) >= fewest else {}


def _places(jobs: Iterable[Submitted], group_of: Callable[[Submitted], str]) -> defaultdict[str, list[int]]:
    """Places of the jobs of every group."""
    found: defaultdict[str, list[int]] = defaultdict(list)
    for place, job in enumerate(jobs):
        found[group_of(job)].append(place)
    return found


def beside(run: FleetRun, baseline: FleetRun) -> float:
    """Mean completion time over that under another policy, of the jobs that ended under both; NaN if none did."""
    ours, theirs = of_both(run, baseline)
    if not len(ours):
        return float("nan")
    ours_s, theirs_s = (
        float(each.completion_s[places].sum()) for each, places in ((run, ours), (baseline, theirs))
    )
    return ours_s / theirs_s if theirs_s > 0 else 1.0


def num_not_done(run: FleetRun, baseline: FleetRun) -> int:
    """Count the jobs that ended under another policy and not here: they were killed, refused or left out."""
    return len(baseline.jobs) - baseline.num_killed - len(of_both(run, baseline)[0])


def extra_waiting_s(run: FleetRun, baseline: FleetRun) -> float:
    """Mean waiting less that under another policy, of the jobs that ended under both; NaN if none did."""
    ours, theirs = of_both(run, baseline)
    return float(np.mean(run.waiting_s[ours] - baseline.waiting_s[theirs])) if len(ours) else float("nan")


def of_both(run: FleetRun, baseline: FleetRun) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Places of the jobs that ended under both policies, killed by neither, in either run."""
    place = {name: theirs for theirs, name in enumerate(baseline.names) if not baseline.is_killed[theirs]}
    both = [(i, place[name]) for i, name in enumerate(run.names) if name in place and not run.is_killed[i]]
    ours, theirs = np.array(both, np.int64).reshape(-1, 2).T
    return ours, theirs
