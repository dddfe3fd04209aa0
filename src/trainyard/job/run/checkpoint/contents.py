"""The tensors of a checkpoint, the boxes of their parts, and how the parts of a rank are read from them."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from trainyard.job.run.checkpoint.saved import RUN, FileEntry, read_files
from trainyard.job.run.checkpoint.snapshot import Part
from trainyard.job.run.checkpoint.tensor_files import Place, read_box
from trainyard.job.run.errors import CheckpointError


@dataclass(frozen=True)
class TensorEntry:
    """One tensor of a checkpoint.

    Attributes
    ----------
    dtype : in which it was written.
    shape : of all of it.
    places : boxes that cover it, wherever they were written.
    """

    dtype: torch.dtype
    shape: tuple[int, ...]
    places: list[Place]

    def as_dict(self) -> dict[str, Any]:
        """Return a dictionary for JSON; ``read_contents`` reads it back."""
        return {
            "dtype": str(self.dtype).removeprefix("torch."),
            "shape": list(self.shape),
            "boxes": [[p.file, p.start, list(p.offsets), list(p.sizes)] for p in self.places],
        }


def read_contents(described: Mapping[str, Any], checkpoint: Path) -> dict[str, TensorEntry]:
    """The tensors that a checkpoint says it holds, by ``<field>/<path>``.

    Parameters
    ----------
    described : what ``run.json`` holds.

    Raises
    ------
    CheckpointError
        If an entry cannot be: another type, a box beyond its tensor or its file, boxes that are not the whole tensor.
    """
    files = read_files(described, checkpoint)
    found = {}
    try:
        for key, given in described["tensors"].items():
            found[key] = _entry(given, files)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        name = key if "key" in locals() else "its tensors"
        raise CheckpointError(
            f"{checkpoint / RUN} cannot be read: {name} is wrong ({type(error).__name__} {error})"
        ) from error
    return found


def _entry(given: Mapping[str, Any], files: Mapping[str, FileEntry]) -> TensorEntry:
    dtype = getattr(torch, str(given["dtype"]), None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"unknown type {given['dtype']!r}")
    shape = _naturals(given["shape"])
    places = []
    for file, start, offsets, sizes in given["boxes"]:
        place = Place(str(file), _naturals([start])[0], _naturals(offsets), _naturals(sizes))
        if not len(place.offsets) == len(place.sizes) == len(shape) > 0:
            raise ValueError(f"a box of {len(place.sizes)} dimensions in a tensor of {len(shape)}")
        if any(o + s > n for o, s, n in zip(place.offsets, place.sizes, shape, strict=True)):
            raise ValueError(f"a box at {place.offsets} of {place.sizes} in a tensor of {shape}")
        if place.start + math.prod(place.sizes) * dtype.itemsize > files[place.file].num_bytes:
            raise ValueError(f"a box beyond the end of {place.file}")
        places.append(place)
    if sum(math.prod(p.sizes) for p in places) != math.prod(shape):
        raise ValueError(f"its boxes are not all of a tensor of {shape}")
    return TensorEntry(dtype, shape, places)


def _naturals(given: Any) -> tuple[int, ...]:
    if not isinstance(given, list) or not all(type(n) is int and 0 <= n < 2**63 for n in given):
        raise ValueError(f"no list of numbers from 0: {given!r}")
    return tuple(given)


def read_parts(checkpoint: Path, entries: Mapping[str, TensorEntry], parts: Mapping[str, Part]) -> None:
    """Fill parts with what was written, whoever wrote it; holds some rows of one box at a time beside them.

    Raises
    ------
    CheckpointError
        If a tensor is missing or has another shape, or some of it was not written.
    """
    wanted: dict[str, list[tuple[Place, torch.dtype, tuple[int, ...], torch.Tensor]]] = defaultdict(list)
    for key, part in parts.items():
        entry = entries.get(key)
        if entry is None:
            raise CheckpointError(f"{checkpoint} has no {key}; it is of another model")
        if entry.shape != part.shape:
            raise CheckpointError(
                f"{key} has shape {entry.shape} in {checkpoint} and {part.shape} in this model"
            )
        for box in part.boxes:
            target, num_found, num_boxes = box.of(part.tensor), 0, 0
            for place in entry.places:
                low = tuple(map(max, box.offsets, place.offsets))
                high = tuple(min(o + s, p + t) for o, s, p, t in _spans(box.offsets, box.sizes, place))
                sizes = [h - n for n, h in zip(low, high, strict=True)]
                if any(size <= 0 for size in sizes):
                    continue
                view = target
                for dim, (begin, size) in enumerate(zip(low, sizes, strict=True)):
                    view = view.narrow(dim, begin - box.offsets[dim], size)
                inner = tuple(n - o for n, o in zip(low, place.offsets, strict=True))
                wanted[place.file].append((place, entry.dtype, inner, view))
                num_found, num_boxes = num_found + view.numel(), num_boxes + 1
            if num_boxes > 1:
                target.zero_()  # boxes that overlap, as none should, leave a hole
            if num_found != target.numel():
                raise CheckpointError(f"{checkpoint} has only some of {key}")
    for file in sorted(wanted):
        with (checkpoint / file).open("rb") as stream:
            for place, dtype, inner, view in wanted[file]:
                read_box(stream, place, dtype, inner, view)


def _spans(offsets: tuple[int, ...], sizes: tuple[int, ...], place: Place) -> Any:
    return zip(offsets, sizes, place.offsets, place.sizes, strict=True)
