"""State that an optimizer keeps for each parameter: tensors of its shape, other tensors, and numbers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from trainyard.job.optimizer.own import UserOptimizerError

__all__ = ["Kept", "is_number", "kept_of", "number_of", "value_of"]

Number = tuple[float | int | bool | None, str, int]
"""A number's value, its type (a name of PyTorch or of Python), and its dimensions."""
_PYTHON: dict[str, type] = {"bool": bool, "int": int, "float": float}


@dataclass(frozen=True, eq=False)
class Kept:
    """State that an optimizer keeps.

    Attributes
    ----------
    tensors : names and types of its tensors; a name without one type has the first.
    is_elementwise : whether all are of the shape of their parameters, for all parameters alike.
    num_bytes, num_elements : of the tensors of each parameter that was tried, and of the parameter, by path.
    """

    tensors: tuple[tuple[str, str], ...]
    is_elementwise: bool
    num_bytes: Mapping[str, int]
    num_elements: Mapping[str, int]

    def bytes_of(self, path: str, num_elements: int) -> float:
        """Bytes of the tensors of a parameter of so many elements that is like one that was tried."""
        return self.num_bytes[path] * num_elements / max(1, self.num_elements[path])


def kept_of(
    name: str, states: Mapping[str, Mapping[str, Any]], shapes: Mapping[str, tuple[int, ...]]
) -> Kept:
    """Return what an optimizer keeps, from its state of some parameters.

    Raises
    ------
    UserOptimizerError
        If it keeps what no checkpoint can hold, or numbers that differ between parameters.
    """
    types: dict[str, str] = {}
    of_shape: set[tuple[str, str]] = set()
    numbers: dict[str, Number] = {}
    for path, state in states.items():
        for key, value in state.items():
            if is_number(value):
                if numbers.setdefault(key, number_of(value)) != number_of(value):
                    raise UserOptimizerError(
                        f"{name} keeps a number {key!r} that differs between parameters; take one that keeps it as a "
                        "tensor"
                    )
            elif isinstance(value, Tensor):
                types.setdefault(key, str(value.dtype).removeprefix("torch."))
                if tuple(value.shape) == shapes[path]:
                    of_shape.add((key, path))
            else:
                raise UserOptimizerError(
                    f"{name} keeps a {type(value).__name__} {key!r} for each parameter, which no checkpoint holds; take "
                    "one that keeps tensors and numbers"
                )
    return Kept(
        tuple(sorted(types.items())),
        of_shape == {(key, path) for key in types for path in states} and not types.keys() & numbers.keys(),
        {path: sum(v.nbytes for v in _tensors(state.values())) for path, state in states.items()},
        {path: math.prod(shape) for path, shape in shapes.items()},
    )


def is_number(value: Any) -> bool:
    """Whether a value of an optimizer's state is one number, or none."""
    return (
        value is None
        or isinstance(value, bool | int | float)
        or (isinstance(value, Tensor) and value.dim() == 0)
    )


def number_of(value: Any) -> Number:
    """A number as JSON has it."""
    if isinstance(value, Tensor):
        return value.item(), str(value.dtype).removeprefix("torch."), value.dim()
    return value, type(value).__name__, 0


def value_of(number: Iterable[Any], device: torch.device) -> Any:
    """The value that `number_of` was given; a tensor on a device.

    Raises
    ------
    ValueError
        If it is of no type that a number has.
    """
    value, kind, _ = number
    if value is None:
        return None
    if kind in _PYTHON:
        return _PYTHON[kind](value)
    dtype = getattr(torch, str(kind), None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"unknown type {kind!r} of a number")
    return torch.tensor(value, dtype=dtype, device=device)


def _tensors(values: Iterable[Any]) -> Iterable[Tensor]:
    return (value for value in values if isinstance(value, Tensor) and not is_number(value))
