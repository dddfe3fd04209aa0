"""Finish-time fairness: how long a job would have taken with an equal share of the cluster for itself.

K. Mahajan et al., "Themis: Fair and Efficient GPU Cluster Scheduling", NSDI 2020, section 3.1.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainyard.fleet.workload.job import Adaptive, Grant, Job, Spot, spot_of
from trainyard.hardware.cluster import Cluster

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
_NAN = float("nan")


class FairTimes:
    """The time that each job would have taken, by how many jobs there were while it was there."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._spots: dict[tuple[int, int], tuple[Spot, ...]] = {}

    def times_s(
        self, job: Job, allowed: int, job_s: float, now_s: float, gang_rate: float = _NAN
    ) -> tuple[float, float]:
        """Times of a job that ends now: alone on its gang, and longer in proportion where that is more than its share.

        Its share is that of one of the jobs that there were in the mean while it was there.

        Parameters
        ----------
        allowed : device types that it can run on, as bits.
        job_s : jobs times time while it was there.
        gang_rate : work per second, as in `JobTable`; NaN if it is not known.
        """
        alone_s = self.alone_s(job, allowed, gang_rate)
        waited_s = now_s - job.arrival_s
        jobs = job_s / waited_s if waited_s > 0 else 1.0
        return alone_s, alone_s * max(1.0, self._slower(job.num_devices, jobs))

    def shared_s(self, alone_s: Floats, num_devices: Ints, jobs: Floats) -> Floats:
        """Return the times that jobs take with an equal share, one of ``jobs``, if they take ``alone_s`` alone."""
        found: Floats = alone_s * np.maximum(1.0, self._slower(num_devices, jobs))
        return found

    def _slower(self, num_devices: Any, jobs: Any) -> Any:
        """Devices that a job asks for, or each of some, over those of its equal share; the result is of their type."""
        return jobs * num_devices / self.cluster.num_devices

    def alone_s(self, job: Job, allowed: int, gang_rate: float = _NAN) -> float:
        """Return the time of a job without a pause on its gang, on the fastest allowed type; infinite if none fits."""
        spots, most_s = self._compact(job.num_devices, allowed), job.killed_after_s or float("inf")
        if gang_rate > 0 and spots:
            return min(job.work / gang_rate, most_s)
        grant = _first(job.num_devices)
        return min((min(_alone_s(job, spot, grant), most_s) for spot in spots), default=float("inf"))

    def _compact(self, num_devices: int, allowed: int) -> tuple[Spot, ...]:
        """Return the spot of a gang on each device type that ``allowed`` has as a bit."""
        key = num_devices, allowed
        if key not in self._spots:
            self._spots[key] = _compact(self.cluster, num_devices, allowed)
        return self._spots[key]


def alone_s(job: Job, cluster: Cluster) -> float:
    """Return the time of a job without a pause on its gang, on the fastest type; infinite if it runs on none."""
    return FairTimes(cluster).alone_s(job, cluster.type_bits(job.device_types))


def _compact(cluster: Cluster, num_devices: int, allowed: int) -> tuple[Spot, ...]:
    """Return the spot of a gang on each device type that ``allowed`` has as a bit."""
    return tuple(
        spot_of(device_type, cluster.compact(num_devices, kind))
        for kind, device_type in enumerate(cluster.device_types)
        if cluster.devices_of_type[kind] >= num_devices and (allowed >> kind) & 1
    )


@cache
def _first(num_devices: int) -> Grant:
    """So many devices, whichever they are."""
    return Grant(tuple(range(num_devices)))


def _alone_s(job: Job, spot: Spot, grant: Grant) -> float:
    """Return the time of a job without a pause."""
    if isinstance(job.profile, Adaptive):
        return job.profile.rest_s(spot, grant, 0.0, job.work)
    rate = job.profile.work_per_s(spot, grant)
    return job.work / rate if rate > 0 else float("inf")
