"""Place all tensors of a request in memory at once, when its length is known.

Memory is a list of chunks that stay from request to request. Tensors that are never alive at once may lie in the same
place. So a request takes little more than what is alive in it at once, and asks the device for memory only where it
needs more than those before it.

Fidelity: simplified. Chunks that no tensor uses are released at once. They are searched in the order in which they were
allocated; the authors' program keeps them sorted, the smallest first, and rounds sizes of chunks up to 32 bytes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from trainyard.serve.errors import ServeError

__all__ = ["Chunk", "ChunkedMemory", "TensorPlace", "UsageRecord", "allocate"]

DEFAULT_CHUNK_BYTES = 2 * 2**20
K_SCALE = 1.2


@dataclass(frozen=True)
class UsageRecord:
    """When a tensor is alive, and how large it is.

    Attributes
    ----------
    name : of the tensor.
    first_op, last_op : numbers of the first and the last operator that uses it, in the order in which they are computed.
    size_bytes : of the tensor (size).

    Raises
    ------
    ServeError
        If it has no bytes, or its last operator comes before its first.
    """

    name: str
    first_op: int
    last_op: int
    size_bytes: int

    def __post_init__(self) -> None:
        if self.size_bytes < 1 or self.last_op < self.first_op:
            raise ServeError(
                f"tensor {self.name!r} has {self.size_bytes} bytes, and is used from operator {self.first_op} to "
                f"{self.last_op}; allowed are 1 byte or more and ascending operators; leave out tensors that are not used"
            )

    def overlaps(self, other: UsageRecord) -> bool:
        """Whether both are alive at once."""
        return max(self.first_op, other.first_op) <= min(self.last_op, other.last_op)


class Chunk(NamedTuple):
    """A piece of memory of the device.

    Attributes
    ----------
    number : that no other chunk has.
    size_bytes : of the chunk.
    """

    number: int
    size_bytes: int


class TensorPlace(NamedTuple):
    """Begin of a tensor in memory.

    Attributes
    ----------
    chunk : its number.
    offset_bytes : from the beginning of the chunk.
    """

    chunk: int
    offset_bytes: int


@dataclass(frozen=True)
class ChunkedMemory:
    """Memory that a request uses.

    Attributes
    ----------
    chunks : those that were kept, as before, and then new ones.
    places : of the tensors, in the order of their records.
    """

    chunks: tuple[Chunk, ...]
    places: tuple[TensorPlace, ...]

    @property
    def footprint_bytes(self) -> int:
        """Bytes of all chunks."""
        return sum(chunk.size_bytes for chunk in self.chunks)


_Placed = list[tuple[int, UsageRecord]]
"""Tensors of a chunk with their offsets, in ascending order of these."""


def allocate(
    records: Sequence[UsageRecord],
    chunks: Sequence[Chunk] = (),
    chunk_bytes: int = DEFAULT_CHUNK_BYTES,
    scale: float = K_SCALE,
) -> ChunkedMemory:
    """Algorithm 1: tensors from the largest to the smallest, each in the first chunk that has a gap for it.

    Parameters
    ----------
    records : of the tensors of a request.
    chunks : kept from the request before.
    chunk_bytes : least size of a new chunk (DEFAULT_CHUNK_SIZE).
    scale : size of a new chunk by that of the tensor for which it is allocated (K_SCALE), where this is more.

    Raises
    ------
    ServeError
        If two chunks have the same number, or sizes are out of range.
    """
    _check(chunks, chunk_bytes, scale)
    every, placed = list(chunks), [_Placed() for _ in chunks]
    places: dict[int, TensorPlace] = {}
    for index in sorted(range(len(records)), key=lambda index: -records[index].size_bytes):
        record = records[index]
        for chunk, there in zip(every, placed, strict=True):
            offset = _find_gap(record, chunk.size_bytes, there)
            if offset is not None:
                break
        else:
            number = 1 + max((each.number for each in every), default=-1)
            chunk = Chunk(number, max(chunk_bytes, math.ceil(record.size_bytes * scale)))
            there, offset = _Placed(), 0
            every.append(chunk)
            placed.append(there)
        there.append((offset, record))
        there.sort(key=lambda each: each[0])
        places[index] = TensorPlace(chunk.number, offset)
    used = tuple(chunk for chunk, there in zip(every, placed, strict=True) if there)  # others are released
    return ChunkedMemory(used, tuple(places[index] for index in range(len(records))))


def _find_gap(record: UsageRecord, size_bytes: int, placed: _Placed) -> int | None:
    """Algorithm 2, `FindGap`: the smallest gap between tensors that are alive at once with this one, or else the end.

    Returns
    -------
    Where the tensor may begin; None if there is no room in the chunk.
    """
    smallest, best, previous = math.inf, None, 0  # smallest_gap, best_offset, prev_offset
    for offset, other in placed:
        if record.overlaps(other):
            gap = offset - previous
            if record.size_bytes <= gap < smallest:
                smallest, best = gap, previous
            previous = max(previous, offset + other.size_bytes)
    if best is None and size_bytes - previous >= record.size_bytes:
        best = previous
    return best


def _check(chunks: Sequence[Chunk], chunk_bytes: int, scale: float) -> None:
    if len({chunk.number for chunk in chunks}) < len(chunks):
        raise ServeError(f"chunks {[chunk.number for chunk in chunks]}; give each a number of its own")
    if min((chunk_bytes, *(chunk.size_bytes for chunk in chunks))) < 1:
        raise ServeError(
            f"chunks of {[chunk_bytes, *(chunk.size_bytes for chunk in chunks)]} bytes; allowed is 1 or more; "
            "leave out empty ones"
        )
    if not 1 <= scale < math.inf:
        raise ServeError(
            f"scale is {scale}; allowed is 1 or more, as a chunk holds its tensor; {K_SCALE} is usual"
        )
