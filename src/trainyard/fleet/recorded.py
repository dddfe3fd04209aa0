"""What really happened, as far as a trace says when its jobs started: a run to set simulations beside."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from trainyard.fleet.errors import UnfitJobError
from trainyard.fleet.mechanism.feasibility import Feasibility
from trainyard.fleet.records import FleetRun, Recorder, Submitted, Unfit
from trainyard.fleet.traits import Wish
from trainyard.fleet.workload.fair import FairTimes
from trainyard.fleet.workload.job import Job, rate_anywhere
from trainyard.fleet.workload.lengths import check_times
from trainyard.hardware.cluster import Cluster

__all__ = ["AS_RECORDED", "recorded_run"]

Floats = NDArray[np.float64]

AS_RECORDED = "as recorded"
"""What stands where runs have their policy."""
_ALL_WISHES: frozenset[Wish] = frozenset({"gang", "equal workers", "pinned cell"})


def recorded_run(jobs: Sequence[Job], cluster: Cluster) -> FleetRun | None:
    """The jobs as they ran, without interruption, from the starts in the trace; None where it has no start.

    Jobs of which start or length were not recorded, and those that are too large for the cluster, are left out.

    Parameters
    ----------
    jobs : in the order of arrival.
    cluster : the cluster of the simulations. What ran may have had more devices than it has.
    """
    if not any(job.started_s is not None for job in jobs):
        return None
    notes, feasibility, ran = (
        Recorder(keep_spans=False),
        Feasibility(cluster, _ALL_WISHES),
        list[tuple[float, float, Job, int]](),
    )
    for job in jobs:
        try:
            check_times(job)
            bits = feasibility.of(job)
        except UnfitJobError as error:
            notes.left_out.append(Unfit(Submitted.of(job), error.reason, str(error)))
            continue
        rate = rate_anywhere(job)
        if job.started_s is None or not rate > 0:
            what = "when it started" if job.started_s is None else "how long it ran"
            notes.left_out.append(Unfit(Submitted.of(job), f"the trace does not say {what}", ""))
            continue
        ran.append((job.started_s + job.work / rate, job.started_s, job, bits))
    ran.sort(key=lambda each: each[0])
    arrivals_s = np.array([job.arrival_s for _, _, job, _ in ran])
    starts_s, ends_s = (np.array([each[i] for each in ran]) for i in (1, 0))
    sizes = np.array([float(job.num_devices) for _, _, job, _ in ran])
    fair = FairTimes(cluster)
    job_s = _area(arrivals_s, ends_s, np.ones(len(ran)))
    for (end_s, start_s, job, bits), own_job_s in zip(ran, job_s.tolist(), strict=True):
        wait_s, device_s = start_s - job.arrival_s, (end_s - start_s) * job.num_devices
        times_s = fair.times_s(job, bits, own_job_s, end_s)
        notes.ended(job, start_s, end_s, wait_s, 0.0, device_s, 0.0, 0, 1, *times_s)
    moments_s, in_use = _over_time(starts_s, ends_s, sizes)
    waiting_s, waiting = _over_time(arrivals_s, starts_s, np.ones(len(ran)))
    every_s = np.union1d(moments_s, waiting_s)
    found = np.array([every_s, _at(every_s, moments_s, in_use), _at(every_s, waiting_s, waiting)])
    changes = (found[1:, 1:] != found[1:, :-1]).any(axis=0)
    notes.uses(found[:, np.append(np.ones(min(1, len(every_s)), np.bool_), changes)])
    return notes.result(AS_RECORDED, cluster, "")


def _over_time(from_s: Floats, until_s: Floats, weights: Floats) -> tuple[Floats, Floats]:
    """When the sum of the weights of what is there changes, and what it is from then on."""
    moments_s, place = np.unique(np.concatenate((from_s, until_s)), return_inverse=True)
    changes = np.bincount(place, np.concatenate((weights, -weights)), len(moments_s))
    return moments_s, np.cumsum(changes)


def _at(every_s: Floats, moments_s: Floats, values: Floats) -> Floats:
    """How large a sum is at some moments, in whole numbers."""
    found: Floats = np.append(0.0, values)[np.searchsorted(moments_s, every_s, side="right")].astype(np.int64)
    return found


def _area(from_s: Floats, until_s: Floats, weights: Floats) -> Floats:
    """For everything that is there, the sum of the weights of all that is, over the time in which it is."""
    moments_s, values = _over_time(from_s, until_s, weights)
    upto = (
        np.concatenate(([0.0], np.cumsum(values[:-1] * np.diff(moments_s)))) if len(moments_s) else moments_s
    )
    found: Floats = (
        np.interp(until_s, moments_s, upto) - np.interp(from_s, moments_s, upto) if len(moments_s) else upto
    )
    return found
