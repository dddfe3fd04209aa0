"""Linear interpolation between points scattered in space."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.spatial import Delaunay

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_TINY = 1e-9


@dataclass(frozen=True, eq=False)
class Tetrahedra:
    """Values at the corners of tetrahedra, in between linear.

    SciPy's interpolator does the same, but prepares it with thousands of tiny threaded LAPACK calls, which takes a
    hundred times as long where cores are shared.

    Attributes
    ----------
    corner : [tetrahedron, 3]: one corner.
    inverse : [tetrahedron, 3, 3]: of the edges from there.
    values : [tetrahedron, 4, value]: at that corner, then at the ends of the edges.
    number : [tetrahedron]: its number in the triangulation, where there are flat ones, too.
    """

    corner: Floats
    inverse: Floats
    values: Floats
    number: Ints
    triangulation: Delaunay

    def at(self, point: tuple[float, float, float]) -> Floats | None:
        """Values at a point; None outside of all tetrahedra.

        On a regular grid, tetrahedra on either side of a rectangle may divide it along different diagonals. On it, the
        one counts that SciPy finds.
        """
        parts = np.einsum("ski,si->sk", self.inverse, np.array(point) - self.corner)
        parts = np.concatenate((1 - parts.sum(1, keepdims=True), parts), 1)
        least = parts.min(1)
        around = np.flatnonzero(least >= -_TINY)
        if not len(around):
            return None
        best = int(np.argmax(least[around]))
        found: Floats = np.einsum("sk,skv->sv", parts[around], self.values[around])
        if not np.allclose(found, found[0], rtol=_TINY, atol=0.0):
            theirs = self.number[around] == self.triangulation.find_simplex(np.array(point))
            best = int(np.argmax(theirs)) if theirs.any() else best
        row: Floats = found[best]
        return row


def between(points: Floats, values: Floats) -> Tetrahedra:
    """Interpolate between points, [point, 3], with values [point, value], over their Delaunay triangulation."""
    triangulation = Delaunay(points)
    simplices = triangulation.simplices
    corners = points[simplices]
    a, b, c = (corners[:, k] - corners[:, 0] for k in (1, 2, 3))
    normals = np.stack([np.cross(b, c), np.cross(c, a), np.cross(a, b)], 1)
    volume = (normals[:, 0] * a).sum(1)
    solid = np.flatnonzero(np.abs(volume) > 1e-12 * np.abs(volume).max())
    inverse = normals[solid] / volume[solid, None, None]
    return Tetrahedra(corners[solid, 0], inverse, values[simplices[solid]], solid, triangulation)
