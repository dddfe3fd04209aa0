"""Placements of a tensor on the ranks of one mesh axis."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal, NamedTuple

from trainyard.reading import shown
from trainyard.reading.arguments import WrongValueError

Reduction = Literal["sum", "avg", "max", "min"]


@dataclass(frozen=True, slots=True)
class Replicate:
    """Every rank holds the whole tensor."""

    def __str__(self) -> str:
        return "R"


@dataclass(frozen=True, slots=True)
class Shard:
    """Every rank holds an equal part of dimension ``dim``.

    Attributes
    ----------
    dim : the tensor dimension that is cut.
    blocks : the dimension is a row of this many equal blocks, and each block is cut. A fused
        query-key-value weight of ``3 * hidden`` rows is cut by heads as ``Shard(0, blocks=3)``.
    """

    dim: int
    blocks: int = 1

    def __str__(self) -> str:
        return f"S{self.dim}" if self.blocks == 1 else f"S{self.dim}/{self.blocks}"


@dataclass(frozen=True, slots=True)
class Partial:
    """Every rank holds a term; the tensor is their reduction."""

    reduction: Reduction = "sum"

    def __str__(self) -> str:
        return "P" if self.reduction == "sum" else f"P{self.reduction}"


Placement = Replicate | Shard | Partial

REPLICATE = Replicate()
PARTIAL = Partial()


def parse_placement(text: str) -> Placement:
    """Read ``R``, ``S<dim>``, ``S<dim>/<blocks>``, ``P``, ``Pavg``, ``Pmax`` or ``Pmin``.

    Raises
    ------
    WrongValueError
        On any other text.
    """
    if text == "R":
        return REPLICATE
    if match := re.fullmatch(r"S(\d{1,3})(?:/([1-9]\d{0,8}))?", text):
        return Shard(int(match[1]), int(match[2] or 1))
    if match := re.fullmatch(r"P(avg|max|min)?", text):
        return Partial(match[1] or "sum")  # type: ignore[arg-type]
    raise WrongValueError(
        f"{shown(text)} is no placement; write R (replicated), S0 (dimension 0 sharded), S0/3 (each of 3 blocks of "
        "dimension 0 sharded), or P (partial sums; Pavg, Pmax, Pmin for other reductions)"
    )


@dataclass(frozen=True, slots=True)
class OpChoice:
    """The placements of one op along a mesh axis: ``S1 S0 -> P``, a product whose ranks hold terms of the result.

    Attributes
    ----------
    operands, results : placements of its tensor arguments and of its results, in their order.
    moved_to : the placement to which its one result is brought at once, for all that use it: ``S1 S0 -> P -> R``. Without
        it, whatever uses the result brings it to where it needs it.
    """

    operands: tuple[Placement, ...]
    results: tuple[Placement, ...]
    moved_to: Placement | None = None

    def __str__(self) -> str:
        sides = [self.operands, self.results, *(() if self.moved_to is None else ((self.moved_to,),))]
        return " -> ".join(" ".join(map(str, side)) for side in sides).strip()


def parse_op_choice(text: str) -> OpChoice:
    """Read ``S0 R -> S0``: the placements of the operands, then of the results, then that to which the result is moved.

    Raises
    ------
    WrongValueError
        On any other text.
    """
    sides = [tuple(map(parse_placement, side.split())) for side in text.split("->")]
    moved_to = sides[2] if len(sides) == 3 else ()
    if len(sides) not in (2, 3) or len(moved_to) != len(sides) - 2 or (moved_to and len(sides[1]) != 1):
        raise WrongValueError(
            f"{shown(text)} is no choice of an op; write the placements of its operands, an arrow, and those of its "
            "results, such as S1 S0 -> P; where there is one result, a second arrow and the placement to which it is "
            "moved may follow, such as S1 S0 -> P -> R"
        )
    return OpChoice(sides[0], sides[1], *moved_to)


Divisor = int | Fraction
"""By which a dimension is divided to get a rank's part: 4 for one of four parts, 4/3 for three of them."""


class Share(NamedTuple):
    """Which of the equal parts of an axis a rank holds: ``held`` of ``of``, from ``first`` on."""

    first: int
    held: int
    of: int

    @property
    def divisor(self) -> Divisor:
        """By which a dimension is divided."""
        return self.of if self.held == 1 else Fraction(self.of, self.held)


def local_shape(shape: tuple[int, ...], placement: Placement, divisor: Divisor) -> tuple[int, ...]:
    """Shape of one rank's part.

    Raises
    ------
    WrongValueError
        If the dimension does not divide evenly, or there is none.
    """
    if not isinstance(placement, Shard):
        return tuple(shape)
    if placement.dim >= len(shape):
        raise WrongValueError(
            f"shape {tuple(shape)} has no dimension {placement.dim} to be divided as {placement}"
        )
    size, blocks = shape[placement.dim], placement.blocks
    if size % (blocks * divisor):
        raise WrongValueError(
            f"dimension {placement.dim} of shape {tuple(shape)} is not divisible as {placement} by {divisor}"
        )
    return (*shape[: placement.dim], size // divisor, *shape[placement.dim + 1 :])
