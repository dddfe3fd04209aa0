"""The index algebra: every aten op described once by its dimensions; all sharding choices follow from it."""

from trainyard.program.algebra import elementwise, indexing, linear_algebra, normalise, shapes, spatial

__all__ = ["elementwise", "indexing", "linear_algebra", "normalise", "shapes", "spatial"]
