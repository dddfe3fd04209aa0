"""Gavel's hierarchical policy: entities share by weight, and their jobs by the entity's own rule."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import numpy as np

from trainyard.fleet.policies.gavel.water_filling import Hierarchical
from trainyard.fleet.reproduce.programs.gavel import fractions, problem
from trainyard.published import PaperTable, Row

_ENTITIES = ("a", "a", "b", "b", "c", "c")
# Devices, the rule within entities, and the fractions. Of five devices, b and c can use four; a has the rest.
_CASES: dict[str, tuple[int, Literal["fairness", "fifo"], tuple[float, ...]]] = {
    "two devices, fairness within": (2, "fairness", (1 / 6, 1 / 6, 1 / 3, 1 / 3, 1 / 2, 1 / 2)),
    "five devices, fairness within": (5, "fairness", (1 / 2, 1 / 2, 1.0, 1.0, 1.0, 1.0)),
    "three devices, first come first served within": (3, "fifo", (1 / 2, 0.0, 1.0, 0.0, 1.0, 1 / 2)),
}


def _rows() -> Iterator[Row]:
    for label, (devices, inner, theirs) in _CASES.items():
        policy = Hierarchical(inner=inner, weights=(("b", 2.0), ("c", 3.0)))
        given = problem(np.ones((6, 1)), (devices,), entity=_ENTITIES)
        found = fractions(policy, given)[:, 0].tolist()
        for number, (want, ours) in enumerate(zip(theirs, found, strict=True)):
            if want:
                yield Row(f"{label}: job {number} of {_ENTITIES[number]}", want, ours)


TABLES = (
    PaperTable(
        "Narayanan et al., OSDI 2020, section 4.3, hierarchical policies: entities of weights 1, 2 and 3, by hand",
        "fraction of a device",
        "the policy's decision for two jobs of each of three entities, one type of device; zeros are not listed",
        _rows,
        tolerance=1e-6,
    ),
)
