"""For every op with a rule, how to draw arguments for it; a module per module of the algebra."""

from algebra_cases import (  # noqa: F401  (register their cases)
    batched,
    indexing,
    linear_algebra,
    normalise,
    shapes,
    spatial,
)
from algebra_cases.drawing import CASES, NOT_DRAWN, Case, Draw
from algebra_cases.elementwise import POINTWISE

__all__ = ["CASES", "NOT_DRAWN", "POINTWISE", "Case", "Draw"]
