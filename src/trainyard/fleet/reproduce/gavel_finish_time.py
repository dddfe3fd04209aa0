"""Gavel's finish-time fairness: the fair division of one device, which has a closed form."""

from __future__ import annotations

from collections.abc import Iterator
from math import sqrt

import numpy as np

from trainyard.fleet.policies.gavel.finish_time import FinishTimeFairness
from trainyard.fleet.reproduce.programs.gavel import fractions, problem
from trainyard.published import PaperTable, Row

_LEFT_S = 100.0


def _share(age_s: float) -> float:
    """Return the share of the job that came so long before the other one.

    Both need a fraction x of the device in which age + left / x is the same, and the fractions sum to 1: a root of
    age x^2 + (2 left - age) x - left = 0.
    """
    half = (2 * _LEFT_S - age_s) / 2
    return _LEFT_S / (half + sqrt(half**2 + age_s * _LEFT_S))


def _rows() -> Iterator[Row]:
    for age_s in (0.0, 100.0, 300.0, 1000.0):
        given = problem(np.ones((2, 1)), (1,), left=np.full(2, _LEFT_S), age_s=np.array([age_s, 0.0]))
        yield Row(
            f"{age_s:g} s before the other",
            _share(age_s),
            float(fractions(FinishTimeFairness(), given)[0, 0]),
        )


TABLES = (
    PaperTable(
        "Narayanan et al., OSDI 2020, section 4.2, finish-time fairness: its condition solved for two jobs, one device",
        "fraction of the device for the job that came first",
        f"the policy's decision for two jobs with {_LEFT_S:g} s of work left",
        _rows,
        tolerance=1e-3,
    ),
)
