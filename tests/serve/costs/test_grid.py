"""Times between the points of a grid."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainyard.serve.costs.tables.grid import Grid, points_of

_SIZES = (1, 2, 8, 64, 100)


def _law(a: float, b: float) -> float:
    """Seconds of work that a power law describes."""
    return 3e-6 * a**0.5 * b**1.25


@given(st.floats(1, 1000), st.floats(1, 1000))
def test_a_power_law_is_found_between_points_and_beyond(a, b):
    grid = Grid({(x, y): _law(x, y) for x in _SIZES for y in _SIZES})
    assert grid(a, b) == pytest.approx(_law(a, b), rel=1e-9)


def test_points_that_are_missing_are_filled_from_their_neighbours():
    """Every other point is missing, as in the measured tables."""
    points = {
        (x, y): _law(x, y) for i, x in enumerate(_SIZES) for j, y in enumerate(_SIZES) if (i + j) % 2 == 0
    }
    grid = Grid(points)
    assert grid(8, 2) == pytest.approx(_law(8, 2), rel=1e-9)
    # On an edge there are neighbours on one axis only.
    assert grid(1, 2) == pytest.approx(_law(1, 2), rel=1e-9)


def test_below_the_smallest_size_it_takes_as_long():
    grid = Grid({(16.0,): 5e-6, (32.0,): 8e-6})
    assert grid(1) == pytest.approx(5e-6)
    assert grid(0) == pytest.approx(5e-6)


def test_one_size_of_an_axis_is_of_all():
    grid = Grid({(4, 10): 1e-6, (4, 20): 2e-6})
    assert grid(1, 20) == grid(99, 20) == pytest.approx(2e-6)


def test_a_line_along_the_last_axis_agrees_with_single_points():
    grid = Grid({(x, y): _law(x, y) for x in _SIZES for y in _SIZES})
    logs, values = grid.along_last(5)
    assert 2.0 ** np.interp(np.log2(30.0), logs, values) == pytest.approx(grid(5, 30), rel=1e-9)


def test_of_a_point_that_was_measured_twice_the_shorter_time_counts():
    assert points_of([((1.0,), 2e-6), ((1.0,), 1e-6)]) == {(1.0,): 1e-6}
