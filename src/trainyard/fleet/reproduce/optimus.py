"""Optimus: its two models, fitted to what they describe, and what the simulator of Pollux' authors prints for it."""

from __future__ import annotations

from collections.abc import Iterator

from trainyard.fleet.policies.optimus import speed_curve, unit_seconds, work_left
from trainyard.fleet.reproduce.programs.pollux import jobs_table, optimus_run
from trainyard.published import PaperTable, Row

_SPEED = (8.0, 0.5, 0.02)
"""a0, a1 and a2 of the seconds of a unit of work, a0 / w + a1 + a2 w, on w devices."""
_LOSSES = ((0.2, 0.25, 0.1), (0.05, 0.3, 0.0), (1.0, 0.4, 0.3))
"""b0, b1 and b2 of the loss after k epochs, 1 / (b0 k + b1) + b2."""
_NUM_SEEN, _THRESHOLD = 12, 1e-3


def _unit_s(devices: int) -> float:
    return _SPEED[0] / devices + _SPEED[1] + _SPEED[2] * devices


def _speeds() -> Iterator[Row]:
    curve = speed_curve(tuple((w, _unit_s(w)) for w in (1, 2, 4, 8)))
    for devices in (1, 3, 8, 16, 32):
        yield Row(f"{devices} devices", _unit_s(devices), unit_seconds(curve, devices))


def _epochs() -> Iterator[Row]:
    for b0, b1, b2 in _LOSSES:
        loss = [1 / (b0 * k + b1) + b2 for k in range(5000)]
        # The first epoch after which one more lessens the loss by less than the threshold.
        end = next(k for k in range(len(loss) - 1) if loss[k] - loss[k + 1] < _THRESHOLD * loss[1])
        seen = tuple((float(k), loss[k]) for k in range(1, _NUM_SEEN + 1))
        left = work_left(seen, float(_NUM_SEEN), _THRESHOLD)
        assert left is not None, "twelve losses are enough"
        yield Row(f"b0 {b0:g}, b1 {b1:g}, b2 {b2:g}", end - _NUM_SEEN, left)


TABLES = (
    PaperTable(
        "Peng et al., EuroSys 2018, its model of speed, a0 / w + a1 + a2 w",
        "seconds of a unit of work",
        "predicted from the policy's fit to trials on 1, 2, 4 and 8 devices",
        _speeds,
        tolerance=1e-6,
    ),
    PaperTable(
        "Peng et al., EuroSys 2018, its model of convergence, 1 / (b0 k + b1) + b2",
        "epochs until one lessens the loss by less than a thousandth",
        f"predicted from the policy's fit to the losses of {_NUM_SEEN} epochs; theirs by going on epoch by epoch",
        _epochs,
        tolerance=0.06,
        caveat="theirs are whole epochs, and ours come from a b2 that is looked for on a grid",
    ),
    jobs_table("optimus", 5301.875, optimus_run, 1e-6),
)
