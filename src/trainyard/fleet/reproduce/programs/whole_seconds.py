"""Epochs that take whole seconds, as in the simulators of Pollux' authors and of Sia's.

There an epoch takes whole seconds from where it began, or was interrupted, to its end. Where that is less than its work
needs, and a round ends with it, the job is not yet through with it.

Qiao et al., "Pollux", OSDI 2021; petuum/adaptdl, branch osdi21-artifact, ``simulator/simulator.py``. Jayaram Subramanya
et al., "Sia", SOSP 2023; siasosp23/artifacts at aaf7a0d.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from trainyard.fleet.workload.application import Application
from trainyard.fleet.workload.goodput import gain
from trainyard.fleet.workload.job import Rate

_AN_INSTANT_S = 1e-6


class _Stretch(NamedTuple):
    """Part of an epoch at one speed.

    Attributes
    ----------
    done, reached : work done when it began, as the simulator counts it, and as the program does.
    speed, shown : work per second, as the program counts it, and so that the epoch ends at a whole second.
    until : work done when the epoch ends.
    late_s : by how much that is after the whole second.
    """

    done: float
    reached: float
    speed: float
    shown: float
    until: float
    late_s: float

    def after(self, done: float) -> tuple[float, float]:
        """Work done as the program counts it, and how late it is."""
        if done >= self.until * (1 - 1e-12):
            return self.until, self.late_s
        return self.reached + (done - self.done) * self.speed / self.shown, 0.0


def whole_seconds(app: Application, size: int, step_s: float, done: float, report: Any) -> Rate:
    """The rate of a job to the end of its epoch; what it reports is where it is, as the program counts it.

    Parameters
    ----------
    size : of its batch.
    step_s : that a step takes.
    done, report : as of `Adaptive.rate`.
    """
    scale, runs = size / app.limits.smallest, isinstance(report, _Stretch)
    reached, late_s = report.after(done) if runs else (done, 0.0)
    for epoch in range(app.epoch(reached), len(app.epoch_ends)):
        until, speed = float(app.epoch_ends[epoch]), gain(app.noise(size, epoch), scale) / step_s
        needs_s = (until - reached) / speed
        # What a job is asked that does not run is about the epoch that it is in, however little of that is left.
        if (whole_s := round(needs_s)) > 0 or not runs:
            break
        reached = until
    # Through with it before the round that begins then, or not.
    later_s = _AN_INSTANT_S if whole_s < needs_s else -_AN_INSTANT_S
    shown = (until - done) / max(whole_s + later_s - late_s, _AN_INSTANT_S)
    return Rate(shown, until, _Stretch(done, reached, speed, shown, until, later_s), batch_size=size)
