"""What a job of a fixed batch knows of itself after it has measured its steps.

The noise of its gradients does not matter then. Of a step on several devices, what one device would take for a pass as
large counts as computing.
"""

from __future__ import annotations

from dataclasses import replace

from trainyard.fleet.workload.goodput import Limits, Noise, Report, Timing
from trainyard.fleet.workload.job import Spot

_NO_NOISE = Noise(1.0, 0.0)


def measured(
    rows: int, known: Report | None, spot: Spot, step_s: float, losses: tuple[tuple[float, float], ...] = ()
) -> Report:
    """What a job knows that has measured its steps somewhere.

    Parameters
    ----------
    rows : of its batch.
    known : what it knew before.
    losses : work done and mean loss at the end of every epoch; those that it knew before if there are none.
    """
    before = known or remembered(rows, ())
    local = max(1, rows // spot.num_devices)
    alone_s = [t.step_s * local / rows for t in before.timings if t.num_devices == 1]
    compute_s = min([step_s, *alone_s])
    timing = Timing(spot.device_type, spot.num_nodes, spot.num_devices, local, compute_s, step_s)
    return replace(before.with_timing(timing, _NO_NOISE), losses=losses or before.losses)


def remembered(rows: int, timings: tuple[Timing, ...]) -> Report:
    """What a job knows that measured its steps before."""
    limits = Limits(rows, rows, 1, rows)
    return Report(limits, timings, _NO_NOISE if timings else None, fixed_batch=rows)
