"""Gavel's water filling: jobs that can have no more leave the rest to the others."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from trainyard.fleet.policies.gavel.water_filling import WaterFilling
from trainyard.fleet.reproduce.programs.gavel import fractions, problem
from trainyard.published import PaperTable, Row

_WEIGHTS = (8.0, 4.0, 2.0, 1.0, 1.0)
_DEVICES = 4


def filled(weights: tuple[float, ...], devices: float) -> list[float]:
    """Fractions in proportion to weights, but nobody more than one device (weighted max-min fairness)."""
    shares = [devices * weight / sum(weights) for weight in weights]
    full = [share >= 1 for share in shares]
    if not any(full):
        return shares
    rest = iter(filled(tuple(w for w, f in zip(weights, full, strict=True) if not f), devices - sum(full)))
    return [1.0 if f else next(rest) for f in full]


def _rows() -> Iterator[Row]:
    given = problem(np.ones((len(_WEIGHTS), 1)), (_DEVICES,), weight=np.array(_WEIGHTS))
    found = fractions(WaterFilling(), given)[:, 0].tolist()
    for number, (weight, theirs, ours) in enumerate(
        zip(_WEIGHTS, filled(_WEIGHTS, _DEVICES), found, strict=True)
    ):
        yield Row(f"job {number} of weight {weight:g}", theirs, ours)


TABLES = (
    PaperTable(
        "Narayanan et al., OSDI 2020, section 4.3, water filling: weighted max-min fairness of one type, by hand",
        "fraction of a device",
        f"the policy's decision for five jobs on {_DEVICES} devices of one type",
        _rows,
        tolerance=1e-6,
    ),
)
