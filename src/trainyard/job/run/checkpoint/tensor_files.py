"""Files of tensors in the form of safetensors: a header in JSON, then the numbers of each, one after the other.

Other programs read them by their headers. Here ``run.json`` says where each tensor begins, and only numbers are read from
these files: nothing that lies in them is ever run.
"""

from __future__ import annotations

import json
import math
import os
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from io import BufferedReader
from itertools import chain
from pathlib import Path
from typing import Any

import torch

from trainyard.job.run.checkpoint.saved import FileEntry
from trainyard.job.run.errors import CheckpointError

_PIECE_BYTES = 2**26
_ALIGNMENT = 8
_NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.complex64: "C64",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint64: "U64",
    torch.uint32: "U32",
    torch.uint16: "U16",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


@dataclass(frozen=True)
class Place:
    """The place of a box of a tensor in a file.

    Attributes
    ----------
    file : its name.
    start : of its first byte in the file.
    offsets : where the box begins in the whole tensor, ``sizes`` its extent; by dimension.
    """

    file: str
    start: int
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]


def write_tensors(file: Path, tensors: Mapping[str, torch.Tensor]) -> tuple[FileEntry, dict[str, int]]:
    """Write tensors and see to it that they are on the disk.

    Parameters
    ----------
    tensors : by name, on the CPU; views are made contiguous one after the other.

    Returns
    -------
    What the file came to, and where each tensor begins.
    """
    starts, header = _laid_out(tensors)
    written, crc32 = 0, 0
    pieces: Iterator[bytes | memoryview] = chain([header], map(_bytes_of, tensors.values()))
    with file.open("wb") as stream:
        for piece in pieces:
            stream.write(piece)
            crc32, written = zlib.crc32(piece, crc32), written + len(piece)
        stream.flush()
        os.fsync(stream.fileno())
    return FileEntry(written, crc32), starts


def _laid_out(tensors: Mapping[str, torch.Tensor]) -> tuple[dict[str, int], bytes]:
    """Return the start of each tensor, and the header with these starts."""
    entries: dict[str, dict[str, Any]] = {}
    end = 0
    for name, tensor in tensors.items():
        start, end = end, end + tensor.numel() * tensor.element_size()
        known = _NAMES.get(tensor.dtype)
        shape = list(tensor.shape) if known else [end - start]
        entries[name] = {"dtype": known or "U8", "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(entries).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    header = len(text).to_bytes(8, "little") + text
    return {name: len(header) + e["data_offsets"][0] for name, e in entries.items()}, header


def _bytes_of(tensor: torch.Tensor) -> memoryview:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().data


def read_box(
    stream: BufferedReader,
    place: Place,
    dtype: torch.dtype,
    low: tuple[int, ...],
    target: torch.Tensor,
) -> None:
    """Read a rectangle of a box that was written, a few rows at a time.

    Parameters
    ----------
    stream : the place's file.
    dtype : in which the box was written.
    low : where the rectangle begins in the box.
    target : of the rectangle's shape; numbers are converted to its type.

    Raises
    ------
    CheckpointError
        If the file ends before.
    """
    row = math.prod(place.sizes[1:]) * dtype.itemsize
    at_once = max(1, _PIECE_BYTES // max(1, row))
    for first in range(0, target.shape[0], at_once):
        part = target[first : first + at_once]
        rows = torch.empty((part.shape[0], *place.sizes[1:]), dtype=dtype)
        stream.seek(place.start + (low[0] + first) * row)
        if stream.readinto(_bytes_of(rows)) != rows.numel() * dtype.itemsize:
            raise CheckpointError(f"{stream.name} is damaged: it ends within a tensor")
        for dim in range(1, part.dim()):
            rows = rows.narrow(dim, low[dim], part.shape[dim])
        part.copy_(rows)
