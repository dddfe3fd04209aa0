"""Pieces that the ranks of one mesh send to those of another, so that a tensor has the placement it needs there."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import combinations
from typing import NamedTuple

from trainyard.job.plan import Mesh
from trainyard.program.boxes import Box, boxes
from trainyard.program.placement import Placement, Shard, local_shape

Shape = tuple[int, ...]


class Layout(NamedTuple):
    """The placement of a tensor on a mesh, without terms of sums.

    Attributes
    ----------
    placements : by axis; whole along those that are not named.
    """

    mesh: Mesh
    placements: tuple[tuple[str, Shard], ...]

    @classmethod
    def of(cls, mesh: Mesh, placements: Mapping[str, Placement]) -> Layout:
        """Make a layout from placements, which may name axes on which the tensor is whole."""
        along = ((axis, placements.get(axis)) for axis in mesh.axes)
        return cls(mesh, tuple((axis, p) for axis, p in along if isinstance(p, Shard)))

    def divides(self, shape: Shape) -> bool:
        """Return whether a tensor of this shape can be divided in this layout."""
        try:
            for axis, placement in self.placements:
                shape = local_shape(shape, placement, self.mesh.num_parts(axis))
        except ValueError:
            return False
        return True

    def shape_of_part(self, shape: Shape, rank: int) -> Shape:
        """Return the shape of a rank's part of a tensor of this shape."""
        shares = self.mesh.shares(rank)
        for axis, placement in self.placements:
            shape = local_shape(shape, placement, shares[axis].divisor)
        return shape

    def shape_of_whole(self, shape: Shape, rank: int) -> Shape:
        """The tensor of which a rank has so much."""
        shares = self.mesh.shares(rank)
        for axis, placement in self.placements:
            cut, share = placement.dim, shares[axis]
            shape = (*shape[:cut], shape[cut] // share.held * share.of, *shape[cut + 1 :])
        return shape

    def parts(self, shape: Shape) -> list[tuple[Box, ...]]:
        """Return the box of each rank's part in a tensor of this shape."""
        placements = dict(self.placements)
        return [boxes(shape, placements, self.mesh.shares(rank)) for rank in range(self.mesh.num_ranks)]


class Piece(NamedTuple):
    """A rectangle that one rank sends to another.

    Attributes
    ----------
    sender, receiver : their numbers in their meshes.
    sent, received : where it begins in the sender's part, and in the receiver's.
    sizes : its extent by dimension.
    """

    sender: int
    receiver: int
    sent: Shape
    received: Shape
    sizes: Shape


@lru_cache(maxsize=2**12)
def pieces(shape: Shape, source: Layout, target: Layout) -> tuple[Piece, ...]:
    """Return the pieces that ranks send to each other. Receivers take turns among senders that have the same.

    Parameters
    ----------
    shape : of the whole tensor.
    """
    if source == target:
        start = (0,) * len(shape)
        sizes = [source.shape_of_part(shape, rank) for rank in range(source.mesh.num_ranks)]
        return tuple(Piece(rank, rank, start, start, own) for rank, own in enumerate(sizes))
    have, need = source.parts(shape), target.parts(shape)
    owners: dict[tuple[Box, ...], list[int]] = {}
    for rank, part in enumerate(have):
        owners.setdefault(part, []).append(rank)
    return tuple(
        Piece(ranks[receiver % len(ranks)], receiver, *overlap)
        for receiver, wanted in enumerate(need)
        for part, ranks in owners.items()
        for overlap in _overlaps(part, wanted)
    )


def _overlaps(part: tuple[Box, ...], wanted: tuple[Box, ...]) -> Iterator[tuple[Shape, Shape, Shape]]:
    """Rectangles that are in both: where they begin in the one and in the other, and their sizes."""
    for a in part:
        for b in wanted:
            low = tuple(map(max, a.offsets, b.offsets))
            high = tuple(
                min(x + m, y + n) for x, m, y, n in zip(a.offsets, a.sizes, b.offsets, b.sizes, strict=True)
            )
            sizes = tuple(map(operator.sub, high, low))
            if all(size > 0 for size in sizes):
                yield _moved(a, low), _moved(b, low), sizes


def _moved(box: Box, offsets: Shape) -> Shape:
    """Translate a place of the whole tensor into the part of the box that holds it."""
    return tuple(at + where - first for at, where, first in zip(box.local, offsets, box.offsets, strict=True))


def are_complete(sent: Sequence[Piece], shape: Shape, source: Layout, target: Layout) -> bool:
    """Return whether pieces lie in the parts of their senders, and fill the parts of all receivers once."""
    have, need = (
        [layout.shape_of_part(shape, rank) for rank in range(layout.mesh.num_ranks)]
        for layout in (source, target)
    )
    filled: list[list[Piece]] = [[] for _ in need]
    for piece in sent:
        filled[piece.receiver].append(piece)
    are_inside = (
        first >= 0 and first + size <= most
        for piece in sent
        for starts, part in ((piece.sent, have[piece.sender]), (piece.received, need[piece.receiver]))
        for first, size, most in zip(starts, piece.sizes, part, strict=True)
    )
    are_whole = (
        sum(math.prod(p.sizes) for p in own) == math.prod(part)
        and not any(_overlap(a, b) for a, b in combinations(own, 2))
        for own, part in zip(filled, need, strict=True)
    )
    return all(are_inside) and all(are_whole)


def _overlap(a: Piece, b: Piece) -> bool:
    """Return whether two pieces fill an element of one part twice."""
    rows = zip(a.received, a.sizes, b.received, b.sizes, strict=True)
    return all(x < y + n and y < x + m for x, m, y, n in rows)
