"""The run that a trace recorded, from the times when its jobs started: to compare simulations with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, get_args

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
"""Name of the recorded run in place of a policy."""
_ALL_WISHES: frozenset[Wish] = frozenset(get_args(Wish))


class _Ran(NamedTuple):
    """A job that ran.

    Attributes
    ----------
    bits : types of device that it can run on.
    held : [attempt, 3]: when each attempt began and ended, and its devices.
    """

    job: Job
    bits: int
    held: Floats

    @property
    def end_s(self) -> float:
        return float(self.held[-1, 1])

    @property
    def waited(self) -> Floats:
        """[time without devices, 3]: its beginning and end, and 1 for the job that waits."""
        since_s = np.append(self.job.arrival_s, self.held[:-1, 1])
        return np.stack([since_s, self.held[:, 0], np.ones(len(since_s))], 1)


def recorded_run(jobs: Sequence[Job], cluster: Cluster) -> FleetRun | None:
    """The jobs as they ran, with the interruptions that the trace tells of; None where no job says when it started.

    Jobs of which start or length were not recorded, and those that are too large for the cluster, are left out.

    Parameters
    ----------
    jobs : in the order of arrival.
    cluster : the cluster of the simulations. What ran may have had more devices than it has.
    """
    if not any(job.attempts for job in jobs):
        return None
    notes, feasibility, ran = Recorder(keep_spans=False), Feasibility(cluster, _ALL_WISHES), list[_Ran]()
    for job in jobs:
        try:
            check_times(job)
            ran.append(_Ran(job, feasibility.of(job), _held(job)))
        except UnfitJobError as error:
            notes.left_out.append(Unfit(Submitted.of(job), error.reason, str(error)))
    ran.sort(key=lambda each: each.end_s)
    fair = FairTimes(cluster)
    there = np.array([(each.job.arrival_s, each.end_s, 1.0) for each in ran]).reshape(-1, 3)
    for (job, bits, held), own_job_s in zip(ran, _area(there).tolist(), strict=True):
        _note(notes, job, held, fair.times_s(job, bits, own_job_s, float(held[-1, 1])))
    notes.uses(_uses(ran))
    return notes.result(AS_RECORDED, cluster, "")


def _held(job: Job) -> Floats:
    """When each attempt of a job began and ended, and its devices, [attempt, 3].

    Raises
    ------
    UnfitJobError
        If that was not recorded.
    """
    if not job.attempts:
        raise UnfitJobError("the trace does not say when it started", "")
    last = job.attempts[-1]
    if last.end_s is None:
        rate = rate_anywhere(job)
        if not rate > 0:
            raise UnfitJobError("the trace does not say how long it ran", "")
        last = last._replace(end_s=last.start_s + job.work / rate)
    return np.array(
        [(each.start_s, each.end_s, each.num_devices) for each in (*job.attempts[:-1], last)], np.float64
    )


def _note(notes: Recorder, job: Job, held: Floats, fair_s: tuple[float, float]) -> None:
    """Note the end of a job."""
    (start_s, *_), (*_, end_s) = held[:, 0].tolist(), held[:, 1].tolist()
    between_s = float((held[1:, 0] - held[:-1, 1]).sum())
    device_s = float(((held[:, 1] - held[:, 0]) * held[:, 2]).sum())
    wait_s, again = start_s - job.arrival_s + between_s, len(held) - 1
    notes.ended(job, start_s, end_s, wait_s, 0.0, device_s, 0.0, again, again + 1, *fair_s, 0.0)


def _uses(ran: Sequence[_Ran]) -> Floats:
    """Devices in use and jobs that wait whenever either changes; rows as in `Series`."""
    empty = np.zeros((0, 3))
    moments_s, in_use = _over_time(np.concatenate([empty, *(each.held for each in ran)]))
    waiting_s, waiting = _over_time(np.concatenate([empty, *(each.waited for each in ran)]))
    every_s = np.union1d(moments_s, waiting_s)
    found = np.array([every_s, _at(every_s, moments_s, in_use), _at(every_s, waiting_s, waiting)])
    changes = (found[1:, 1:] != found[1:, :-1]).any(axis=0)
    uses: Floats = found[:, np.append(np.ones(min(1, len(every_s)), np.bool_), changes)]
    return uses


def _over_time(spans: Floats) -> tuple[Floats, Floats]:
    """When the sum of the weights of what is there changes, and what it is from then on.

    Parameters
    ----------
    spans : [span, 3]: beginning, end and weight.
    """
    times_s, weights = np.concatenate((spans[:, 0], spans[:, 1])), np.concatenate((spans[:, 2], -spans[:, 2]))
    moments_s, place = np.unique(times_s, return_inverse=True)
    return moments_s, np.cumsum(np.bincount(place, weights, len(moments_s)))


def _at(every_s: Floats, moments_s: Floats, values: Floats) -> Floats:
    """Return the values of a sum at some times, in whole numbers."""
    found: Floats = np.append(0.0, values)[np.searchsorted(moments_s, every_s, side="right")].astype(np.int64)
    return found


def _area(spans: Floats) -> Floats:
    """Integrate over each span the sum of the weights of all spans that are there at a time."""
    moments_s, values = _over_time(spans)
    if not len(moments_s):
        return moments_s
    upto = np.concatenate(([0.0], np.cumsum(values[:-1] * np.diff(moments_s))))
    found: Floats = np.interp(spans[:, 1], moments_s, upto) - np.interp(spans[:, 0], moments_s, upto)
    return found
