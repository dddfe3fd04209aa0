"""Mesh: the named axes along which the devices of a stage lie."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import product

from trainyard.job.plan.errors import require
from trainyard.program.placement import Share
from trainyard.reading import listed

PIPELINE = "pipeline"
"""What the stages lie along. It is no axis of a mesh: each stage has a mesh of its own."""

MICROBATCH = "microbatch"
"""The axis of the microbatches of a step, which run one after the other. It is no axis of a mesh either."""

_NAME = re.compile(r"[a-z][a-z0-9_]*")


@dataclass(frozen=True)
class Mesh:
    """Ranks on named axes.

    Attributes
    ----------
    sizes : the axes and their numbers of ranks, outermost first: ranks that differ on the last axis only are
        neighbours. A name says nothing of what the axis divides.
    unequal : the axes along which ranks hold unequal shares of what is divided, with the parts that each rank holds:
        ``("data", (3, 1))`` gives the first rank three quarters.

    Examples
    --------
    >>> mesh = Mesh.of(data=2, tensor=4)
    >>> mesh.num_ranks, mesh.coordinate(6), mesh.groups(("data",))[2]
    (8, {'data': 1, 'tensor': 2}, (2, 6))
    """

    sizes: tuple[tuple[str, int], ...] = ()
    unequal: tuple[tuple[str, tuple[int, ...]], ...] = ()

    def __post_init__(self) -> None:
        names = self.axes
        for name, size in self.sizes:
            require(
                _NAME.fullmatch(name) is not None and name not in (PIPELINE, MICROBATCH),
                f"a mesh axis is called {name!r}; a name is a word in small letters, and {PIPELINE} and {MICROBATCH} are "
                "not axes of a stage's mesh",
            )
            require(size >= 1, f"axes have 1 rank or more, got {name} {size}")
        require(len(set(names)) == len(names), f"an axis is named twice: {', '.join(names)}")

    @classmethod
    def of(cls, **axes: int | tuple[int, ...]) -> Mesh:
        """A mesh by its axes, outermost first: the number of ranks, or the parts that each of them holds.

        Raises
        ------
        PlanError
            If a rank holds no part, or a name is none.
        """
        sizes, unequal = [], []
        for name, ranks in axes.items():
            counts = ranks if isinstance(ranks, tuple) else (1,) * ranks
            require(
                min(counts, default=0) >= 1,
                f"ranks along {name!r} hold {listed(map(str, counts)) or 'nothing'}; an axis has one rank or more, and "
                "each holds one part or more",
            )
            sizes.append((name, len(counts)))
            least = math.gcd(*counts)
            if set(counts) != {least}:
                unequal.append((name, tuple(count // least for count in counts)))
        return cls(tuple(sizes), tuple(unequal))

    def shares(self, rank: int) -> dict[str, Share]:
        """Return the share of a rank along every axis, in the order in which these cut."""
        return {axis: self._share(axis, index) for axis, index in self.coordinate(rank).items()}

    def _share(self, axis: str, index: int) -> Share:
        counts = self._unequal.get(axis)
        if counts is None:
            return Share(index, 1, self.size(axis))
        return Share(sum(counts[:index]), counts[index], sum(counts))

    def parts_held(self, rank: int) -> tuple[int, ...]:
        """Return the number of parts that a rank holds along each axis."""
        return tuple(share.held for share in self.shares(rank).values())

    def num_parts(self, *axes: str) -> int:
        """Parts into which some axes together divide; the number of ranks, unless they hold unequal shares."""
        return math.prod(sum(self._unequal.get(axis, ())) or self.size(axis) for axis in axes)

    def parts_of_ranks(self, *axes: str) -> set[int]:
        """Return the numbers of parts that ranks hold, of ``num_parts(*axes)``, without repeats."""
        return {math.prod(held) for held in product(*(set(self._unequal.get(axis, (1,))) for axis in axes))}

    @cached_property
    def fullest_rank(self) -> int:
        """The first that holds most."""
        return max(range(self.num_ranks), key=lambda r: math.prod(self.parts_held(r))) if self.unequal else 0

    def to_dict(self) -> dict[str, int | list[int]]:
        """The text form: the ranks of each axis, or the parts that each rank holds."""
        return {name: list(self._unequal[name]) if name in self._unequal else n for name, n in self.sizes}

    @cached_property
    def axes(self) -> tuple[str, ...]:
        """Names of the axes, outermost first."""
        return tuple(name for name, _ in self.sizes)

    @cached_property
    def nontrivial(self) -> tuple[tuple[str, int], ...]:
        """The axes of more than one rank, with their sizes."""
        return tuple((name, size) for name, size in self.sizes if size > 1)

    @cached_property
    def _size(self) -> Mapping[str, int]:
        return dict(self.sizes)

    @cached_property
    def _unequal(self) -> Mapping[str, tuple[int, ...]]:
        return dict(self.unequal)

    @cached_property
    def num_ranks(self) -> int:
        """Ranks on all axes together."""
        return math.prod(size for _, size in self.sizes)

    def size(self, *axes: str) -> int:
        """Ranks along some axes together; 1 along an axis that the mesh does not have."""
        return math.prod(self._size.get(axis, 1) for axis in axes)

    def coordinate(self, rank: int) -> dict[str, int]:
        """Return the position of a rank on each axis."""
        found: dict[str, int] = {}
        for name, size in reversed(self.sizes):
            rank, found[name] = divmod(rank, size)
        return {name: found[name] for name in self.axes}

    def rank_at(self, coordinate: Mapping[str, int]) -> int:
        """The rank at a coordinate; other entries of it are left aside."""
        rank = 0
        for name, size in self.sizes:
            rank = rank * size + coordinate[name]
        return rank

    def groups(self, axes: Iterable[str]) -> list[tuple[int, ...]]:
        """Sets of ranks that differ on these axes only, and together are all ranks."""
        along = [name for name in self.axes if name in set(axes)]
        return [
            tuple(self.rank_at({**fixed, **own}) for own in self._coordinates(along))
            for fixed in self._coordinates([name for name in self.axes if name not in along])
        ]

    def _coordinates(self, axes: list[str]) -> Iterator[dict[str, int]]:
        for where in product(*(range(self._size[axis]) for axis in axes)):
            yield dict(zip(axes, where, strict=True))

    def __str__(self) -> str:
        shares = {name: f" ({':'.join(map(str, counts))})" for name, counts in self.unequal}
        return " x ".join(f"{n} {name}{shares.get(name, '')}" for name, n in self.nontrivial) or "1 device"
