"""The index algebra: every aten op described once by its dimensions; all sharding choices follow from it."""

from trainyard.program.algebra import (
    batched,
    elementwise,
    indexing,
    linear_algebra,
    normalise,
    shapes,
    spatial,
)

__all__ = ["batched", "elementwise", "indexing", "linear_algebra", "normalise", "shapes", "spatial"]
