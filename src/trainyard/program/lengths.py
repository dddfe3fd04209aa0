"""Lengths: sizes to which batches of varying length are padded, so that each size is captured once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from trainyard.errors import TrainyardError
from trainyard.program.batch import ROOT, batch_tensors, entry_paths

__all__ = ["LengthError", "Lengths"]


class LengthError(TrainyardError, ValueError):
    """A batch that has no length, several lengths, or one that is too large; the message names the entry."""


@dataclass(frozen=True)
class Lengths:
    """Sizes to which the batches of a run are padded: each batch to the smallest one that holds it.

    Attributes
    ----------
    sizes : lengths for which the step is captured, such as ``(64, 128, 256)``. No batch may be longer than the largest.
    pad : the value with which each entry is filled up, by its name: ``{"input_ids": 0, "labels": -100}``. Other entries
        are the same for every length. Positions in a tuple are named by their number.
    dim : the dimension that counts the length; of each entry by its name, or one for all. Dimension 0 counts rows.
    """

    sizes: tuple[int, ...]
    pad: Mapping[str | int, float]
    dim: int | Mapping[str | int, int] = 1

    def __post_init__(self) -> None:
        sizes = tuple(sorted(self.sizes)) if isinstance(self.sizes, tuple | list) else ()
        whole = all(type(size) is int and size > 0 for size in sizes)
        if not sizes or not whole or len(set(sizes)) < len(sizes):
            raise LengthError(
                f"lengths has sizes {self.sizes!r}; allowed are different whole numbers above 0, such as (64, 128, 256)"
            )
        if not isinstance(self.pad, Mapping) or not self.pad:
            raise LengthError(
                f"lengths has pad {self.pad!r}; allowed is the value with which each entry of the batch is filled up, by "
                'its name, such as {"input_ids": 0, "labels": -100}'
            )
        dims = self.dim if isinstance(self.dim, Mapping) else dict.fromkeys(self.pad, self.dim)
        if unknown := [name for name in dims if name not in self.pad]:
            raise LengthError(f"lengths has a dim of {unknown[0]!r}, which pad does not name")
        if wrong := [dim for dim in dims.values() if type(dim) is not int or dim < 1]:
            raise LengthError(
                f"lengths has dim {wrong[0]!r}; allowed are dimensions from 1 on: 0 counts rows"
            )
        object.__setattr__(self, "sizes", sizes)

    @property
    def largest(self) -> int:
        """The length for which a run is planned."""
        return self.sizes[-1]

    def __str__(self) -> str:
        values = ", ".join(f"{name} with {value}" for name, value in self.pad.items())
        return f"{', '.join(map(str, self.sizes))} (filled up: {values})"

    def _entries(self, tensors: Mapping[str, Tensor]) -> dict[str, tuple[int, float]]:
        """Return the dimension and the pad value of each padded tensor, by path."""
        found = {}
        for name, value in self.pad.items():
            dim = self.dim if isinstance(self.dim, int) else self.dim.get(name, 1)
            for path in entry_paths(tensors, str(name)):
                found[path] = dim, value
        return found

    def length(self, tensors: Mapping[str, Tensor]) -> int:
        """Return the length of a batch.

        Parameters
        ----------
        tensors : of the batch, by path.

        Raises
        ------
        LengthError
            If its padded entries have no length or several, or it is longer than the largest.
        """
        found: dict[str, int] = {}
        for path, (dim, _) in self._entries(tensors).items():
            if tensors[path].dim() <= dim:
                shape = tuple(tensors[path].shape)
                raise LengthError(f"{path} has shape {shape} and so no dimension {dim}, which lengths pads")
            found[path] = tensors[path].shape[dim]
        if len(set(found.values())) > 1:
            said = ", ".join(f"{path} {size}" for path, size in found.items())
            raise LengthError(f"the entries that lengths pads have several lengths: {said}; pad them to one")
        length = next(iter(found.values()), 0)
        if length > self.largest:
            raise LengthError(
                f"{next(iter(found))} has length {length}; the largest of lengths is {self.largest}. Add a size that "
                "holds it, or cut longer rows"
            )
        return length

    def size_for(self, length: int) -> int:
        """Return the smallest size that holds a length."""
        return next(size for size in self.sizes if size >= length)

    def padded(self, tensors: Mapping[str, Tensor], size: int) -> dict[str, Tensor]:
        """Return a batch by path, its entries filled up to a size, or cut to it."""
        found = dict(tensors)
        for path, (dim, value) in self._entries(tensors).items():
            found[path] = _resized(tensors[path], dim, size, value)
        return found

    def padded_rows(self, rows: Sequence[Any]) -> list[Any]:
        """Return rows of a data set; entries that `pad` names are filled up to the longest of these rows.

        Parameters
        ----------
        rows : dictionaries or tuples whose entries make tensors of one dimension less than those of a batch. An entry
            that a row does not have is left to the function that puts rows together.
        """
        found = [dict(row if isinstance(row, Mapping) else enumerate(row)) for row in rows]
        for name, value in self.pad.items():
            key = name if isinstance(rows[0], Mapping) or not str(name).isdecimal() else int(name)
            if not all(key in row for row in found):
                continue
            dim = (self.dim if isinstance(self.dim, int) else self.dim.get(name, 1)) - 1
            tensors = _of_one_type([torch.as_tensor(row[key]) for row in found])
            longest = max(tensor.shape[dim] if tensor.dim() > dim else 0 for tensor in tensors)
            for row, tensor in zip(found, tensors, strict=True):
                row[key] = _resized(tensor, dim, longest, value) if tensor.dim() > dim else tensor
        return found if isinstance(rows[0], Mapping) else [tuple(row.values()) for row in found]

    def example(self, batch: Any, size: int) -> Any:
        """Return an example batch of a size.

        Raises
        ------
        LengthError
            If an entry that is to be padded is not there, or cannot hold the value.
        """
        tensors = batch_tensors(batch)
        for name, value in self.pad.items():
            paths = entry_paths(tensors, str(name))
            if not paths:
                known = ", ".join(path.removeprefix(f"{ROOT}.") for path in tensors)
                raise LengthError(f"lengths pads {name!r}, which the batch does not have; it has {known}")
            for path in paths:
                _check_value(path, tensors[path], value)
        self.length(tensors)
        leaves = list(self.padded(tensors, size).values())
        return pytree.tree_unflatten(leaves, pytree.tree_structure(batch))


def _of_one_type(tensors: list[Tensor]) -> list[Tensor]:
    """Return tensors of the type of those with numbers: an empty list makes a tensor of float32, whatever its column."""
    dtype = next((tensor.dtype for tensor in tensors if tensor.numel()), None)
    return [tensor if tensor.numel() else tensor.to(dtype) for tensor in tensors]


def _check_value(path: str, tensor: Tensor, value: float) -> None:
    if not _holds(tensor.dtype, value):
        raise LengthError(f"lengths pads {path} with {value!r}, which {tensor.dtype} cannot hold")


def _holds(dtype: torch.dtype, value: object) -> bool:
    """Return whether a tensor of a type can hold a value as it is."""
    if not isinstance(value, int | float):
        return False
    if dtype.is_floating_point or dtype.is_complex:
        return True
    if dtype is torch.bool:
        return value in (0, 1)
    limits = torch.iinfo(dtype)
    return limits.min <= value <= limits.max and value == int(value)


def _resized(tensor: Tensor, dim: int, size: int, value: float) -> Tensor:
    missing = size - tensor.shape[dim]
    if missing <= 0:
        return tensor.narrow(dim, 0, size)
    shape = (*tensor.shape[:dim], missing, *tensor.shape[dim + 1 :])
    return torch.cat([tensor, tensor.new_full(shape, value)], dim)
