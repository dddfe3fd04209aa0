"""Reports of jobs with a fixed batch, which measure the time of their steps.

The noise of their gradients does not matter. Of a step on several devices, the time that one device takes for as many
rows counts as computing.
"""

from __future__ import annotations

from dataclasses import replace

from trainyard.fleet.workload.goodput import Limits, Noise, Report, Timing
from trainyard.fleet.workload.job import Spot

_NO_NOISE = Noise(1.0, 0.0)


def updated_report(
    rows: int, report: Report | None, spot: Spot, step_s: float, losses: tuple[tuple[float, float], ...] = ()
) -> Report:
    """Return the report of a job with the measured time of a step added.

    Parameters
    ----------
    rows : of its batch.
    report : the last report of the job; None if there is none.
    spot : of the devices on which the step was measured.
    losses : work done and mean loss at the end of every epoch; if empty, the losses of the last report are kept.
    """
    before = report or report_of_timings(rows, ())
    local = max(1, rows // spot.num_devices)
    alone_s = [t.step_s * local / rows for t in before.timings if t.num_devices == 1]
    compute_s = min([step_s, *alone_s])
    timing = Timing(spot.device_type, spot.num_nodes, spot.num_devices, local, compute_s, step_s)
    return replace(before.with_timing(timing, _NO_NOISE), losses=losses or before.losses)


def report_of_timings(rows: int, timings: tuple[Timing, ...]) -> Report:
    """Return the report of a job with a batch of ``rows``, from times of steps that it measured earlier."""
    limits = Limits(rows, rows, 1, rows)
    return Report(limits, timings, _NO_NOISE if timings else None, fixed_batch=rows)
