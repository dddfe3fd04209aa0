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


def test_a_missing_corner_goes_on_as_the_lines_that_lead_to_it():
    """Large batches of long sequences are often not measured; they take longer than both of their neighbours."""
    corner = (_SIZES[-1], _SIZES[-1])
    grid = Grid({(x, y): _law(x, y) for x in _SIZES for y in _SIZES if (x, y) != corner})
    assert grid(*corner) == pytest.approx(_law(*corner), rel=1e-9)
    assert grid.along_last(100)(np.array([1e5]))[0] == pytest.approx(_law(100, 1e5), rel=1e-9)


def test_beyond_the_largest_size_it_takes_no_less_than_there():
    grid = Grid({(16.0,): 5e-6, (32.0,): 8e-6, (64.0,): 7e-6})  # noise of a measurement
    assert grid(48) < 8e-6
    assert grid(64) == grid(1e6) == pytest.approx(7e-6)
    assert grid.along_last()(np.array([1e6]))[0] == pytest.approx(7e-6)


def test_below_the_smallest_size_it_takes_as_long():
    grid = Grid({(16.0,): 5e-6, (32.0,): 8e-6})
    assert grid(1) == pytest.approx(5e-6)
    assert grid(0) == pytest.approx(5e-6)


def test_one_size_of_an_axis_is_of_all():
    grid = Grid({(4, 10): 1e-6, (4, 20): 2e-6})
    assert grid(1, 20) == grid(99, 20) == pytest.approx(2e-6)


def test_a_line_along_the_last_axis_agrees_with_single_points():
    grid = Grid({(x, y): _law(x, y) for x in _SIZES for y in _SIZES})
    lasts = np.array([0.5, 1, 30, 1000])  # below, at a point, between, and beyond
    assert grid.along_last(5)(lasts) == pytest.approx([grid(5, last) for last in lasts], rel=1e-9)


def test_of_a_point_that_was_measured_twice_the_shorter_time_counts():
    assert points_of([((1.0,), 2e-6), ((1.0,), 1e-6)]) == {(1.0,): 1e-6}
