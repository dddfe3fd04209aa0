"""A run of real jobs beside what the simulator said of it: job by job, and in the mean."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from rich.table import Table

from trainyard.fleet.records import FleetRun
from trainyard.report.tables import make_table
from trainyard.report.units import duration_text, percent_text

__all__ = ["Measured", "measured_jobs", "measured_table", "measurement_document"]


@dataclass(frozen=True)
class Measured:
    """Times of one job, or of all in the mean.

    Attributes
    ----------
    jct_s, first_wait_s : from its arrival to its end, and to its first devices: (predicted, measured).
    num_starts : how often it got some or other devices: (predicted, measured).
    place : in the order of ending, from 1: (predicted, measured); None for all jobs.
    """

    name: str
    jct_s: tuple[float, float]
    first_wait_s: tuple[float, float]
    num_starts: tuple[float, float]
    place: tuple[int, int] | None = None

    @property
    def error(self) -> float:
        """The error of a prediction: measured minus predicted completion time, as a share of the measured one."""
        return 1.0 - self.jct_s[0] / self.jct_s[1]


def measured_jobs(predicted: FleetRun, measured: FleetRun) -> tuple[Measured, ...]:
    """Every job that ended in both, in the order in which they really ended; then all of them."""
    places = {name: place for place, name in enumerate(predicted.names)}
    both = [(places[name], i) for i, name in enumerate(measured.names) if name in places]
    jobs = tuple(
        Measured(
            measured.names[i],
            (float(predicted.completion_s[p]), float(measured.completion_s[i])),
            (float(predicted.first_wait_s[p]), float(measured.first_wait_s[i])),
            (int(predicted.num_starts[p]), int(measured.num_starts[i])),
            (p + 1, i + 1),
        )
        for p, i in both
    )
    if not jobs:
        return ()
    means = [
        tuple(np.mean([getattr(job, name) for job in jobs], axis=0).tolist())
        for name in ("jct_s", "first_wait_s", "num_starts")
    ]
    return (*jobs, Measured("mean", *means))


def measured_table(title: str, predicted: FleetRun, measured: FleetRun) -> Table:
    """One row per job, the first to end first, and the mean; what was predicted stands before what was measured."""
    columns = ("job", "JCT", "off by", "first wait", "starts", "place")
    rows = [
        (
            job.name,
            _both(map(duration_text, job.jct_s)),
            percent_text(job.error),
            _both(map(duration_text, job.first_wait_s)),
            _both(f"{count:.3g}" for count in job.num_starts),
            "" if job.place is None else _both(map(str, job.place)),
        )
        for job in measured_jobs(predicted, measured)
    ]
    return make_table(title, columns, rows)


def _both(texts: Iterable[str]) -> str:
    return " / ".join(texts)


def measurement_document(predicted: FleetRun, measured: FleetRun) -> list[Mapping[str, Any]]:
    """The same as data; the last entry is the mean."""
    return [
        {
            "job": job.name,
            "predicted_jct_s": job.jct_s[0],
            "measured_jct_s": job.jct_s[1],
            "predicted_first_wait_s": job.first_wait_s[0],
            "measured_first_wait_s": job.first_wait_s[1],
            "predicted_num_starts": job.num_starts[0],
            "measured_num_starts": job.num_starts[1],
            "predicted_place": None if job.place is None else job.place[0],
            "measured_place": None if job.place is None else job.place[1],
        }
        for job in measured_jobs(predicted, measured)
    ]
