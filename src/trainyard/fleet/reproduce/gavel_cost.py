"""Gavel's cost: the best ratio of throughput to dollars is that of the best single pair of job and type."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from trainyard.fleet.policies.gavel.objectives import CLOUD_PRICES, LeastCost
from trainyard.fleet.policies.gavel.problem import Problem
from trainyard.fleet.reproduce.programs.gavel import TYPES, fractions, small_problem
from trainyard.published import PaperTable, Row

_PRICE = np.array([dict(CLOUD_PRICES)[kind] for kind in TYPES])


def _without(given: Problem, kind: int) -> Problem:
    """The same with no devices of a type."""
    room, speed = given.devices_of_type.copy(), given.throughputs.copy()
    room[kind], speed[:, kind] = 0, 0.0
    return replace(given, devices_of_type=room, throughputs=speed, able=speed > 0)


def _rows() -> Iterator[Row]:
    whole = small_problem()
    for label, given in {
        "all types": whole,
        **{f"no {kind}": _without(whole, i) for i, kind in enumerate(TYPES)},
    }.items():
        gained = given.throughputs / given.equal_throughput[:, None]
        fraction = fractions(LeastCost(), given)
        reached = (gained * fraction).sum() / (fraction.sum(axis=0) @ _PRICE)
        yield Row(label, float((gained / _PRICE).max()), float(reached))


TABLES = (
    PaperTable(
        "Narayanan et al., OSDI 2020, section 4.2, cost: a ratio of sums is at most the largest of the ratios",
        "speed in parts of an equal share, per dollar an hour",
        "the policy's decision for jobs of 13 kinds of Gavel's on two devices of each type",
        _rows,
        tolerance=1e-4,
    ),
)
