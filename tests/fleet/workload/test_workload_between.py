"""Interpolation is SciPy's, also where tetrahedra do not fit together."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from scipy.interpolate import LinearNDInterpolator

from trainyard.fleet.workload.between import between

GRID = np.array(list(product((1, 2, 4, 8), (4, 8, 16), (32, 45, 64))), np.float64)
VALUES = np.random.default_rng(0).uniform(1.0, 2.0, (len(GRID), 2))


@pytest.mark.parametrize("nodes", range(1, 9))
def test_as_scipy_on_a_grid(nodes: int) -> None:
    ours, theirs = between(GRID, VALUES), LinearNDInterpolator(GRID, VALUES)
    for devices, local in product(range(4, 17), range(32, 65)):
        found = ours.at((nodes, devices, local))
        assert found is not None
        np.testing.assert_allclose(found, np.ravel(theirs((nodes, devices, local))), rtol=1e-9)


def test_nothing_is_known_outside() -> None:
    assert between(GRID, VALUES).at((9.0, 8.0, 45.0)) is None
