"""Speeds by device type, for jobs with a length and no speeds of their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from trainyard.fleet.errors import FleetError
from trainyard.fleet.workload.job import Declared, Grant, Job, Spot
from trainyard.hardware.cluster import Cluster
from trainyard.reading import shown

__all__ = ["TypeSpeeds", "speeds_by_type", "unknown_speeds_warning", "with_speeds"]


@dataclass(frozen=True)
class TypeSpeeds:
    """Profile of a job with a length and no speeds of its own: it runs as fast as device types are said to be.

    Attributes
    ----------
    declared : the job on the devices for which its length is known.
    speeds : device types, each with its speed as a multiple of that; a type without one has 1.
    """

    declared: Declared
    speeds: tuple[tuple[str, float], ...]

    def work_per_s(self, spot: Spot, grant: Grant) -> float:
        """See `Profile`."""
        speed = next((speed for name, speed in self.speeds if name == spot.device_type), 1.0)
        return speed * self.declared.work_per_s(spot, grant)


def speeds_by_type(speeds: Mapping[str, float], clusters: Sequence[Cluster]) -> dict[str, float]:
    """Return speeds by device type, as the clusters spell it; the case of the given names does not matter.

    Raises
    ------
    FleetError
        If no cluster has a type, or a speed is not above 0.
    """
    names = {name.lower(): name for cluster in clusters for name in cluster.device_types}
    found: dict[str, float] = {}
    for name, speed in speeds.items():
        if name.lower() not in names:
            raise FleetError(
                f"speed of {shown(name)}: no node has such devices; there are {', '.join(names.values())}"
            )
        if not 0 < speed < float("inf"):
            raise FleetError(
                f"speed of {shown(name)} is {speed}; give a number above 0, such as 0.5 for half as fast"
            )
        found[names[name.lower()]] = speed
    return found


def with_speeds(jobs: list[Job], cluster: Cluster, speeds: Mapping[str, float]) -> list[Job]:
    """Return the jobs; jobs with a length and no speeds of their own get these speeds."""
    there = tuple(
        (name, speed) for name, speed in speeds.items() if name in cluster.device_types and speed != 1.0
    )
    if not there:
        return jobs
    return [
        replace(job, profile=TypeSpeeds(job.profile, there)) if isinstance(job.profile, Declared) else job
        for job in jobs
    ]


def unknown_speeds_warning(
    jobs: Sequence[Job], present: Cluster, others: Sequence[Cluster], speeds: Mapping[str, float]
) -> str:
    """Return a warning that jobs are taken to be as fast on new device types; empty if there is nothing to warn of."""
    said = {name.lower() for name in (*speeds, *present.device_types)}
    new = dict.fromkeys(
        name for cluster in others for name in cluster.device_types if name.lower() not in said
    )
    count = sum(isinstance(job.profile, Declared) for job in jobs)
    if not new or not count:
        return ""
    names = list(new)
    return (
        f"warning: of {count:,} of {len(jobs):,} jobs only the length is known, and they are taken to run as fast on "
        f"{', '.join(names)} as on the devices of the present; if that is not so, give for example --speed {names[0]}=2"
    )
