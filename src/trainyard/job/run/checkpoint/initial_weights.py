"""Initial weights from elsewhere: a run begins with those of a checkpoint, a file or a state dict, by name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from torch import Tensor

from trainyard.job.run.checkpoint.weights import read_weights
from trainyard.job.run.config import InitFrom
from trainyard.job.run.step.initial import InitialValueError
from trainyard.job.run.step.state import Values
from trainyard.program.model import Model

__all__ = ["initialized"]

_MOST_NAMED = 4


def initialized(values: Values, model: Model, init_from: InitFrom) -> tuple[Values, dict[str, Tensor], str]:
    """Replace initial values by weights that have the same name and shape.

    Parameters
    ----------
    values : initial ones of the model, by path.

    Returns
    -------
    The values; those of them that were loaded; and a sentence that says which were not loaded, and which weights are not
    used.

    Raises
    ------
    InitialValueError
        If weights have another shape than the model's, or none has a name of the model.
    WeightsError, CheckpointError
        If they cannot be read.
    """
    module = model.module
    entries: dict[str, Tensor] = dict(module.named_parameters(remove_duplicate=False))
    entries |= dict(module.named_buffers(remove_duplicate=False))
    given = {_renamed(name, init_from.rename): value for name, value in _given(init_from.weights).items()}
    _check(given, entries, init_from)
    by_tensor = {id(entries[name]): value for name, value in given.items() if name in entries}
    loaded = {
        name: by_tensor[id(held)].reshape(held.shape).to("cpu", held.dtype)
        for name, held in entries.items()
        if id(held) in by_tensor
    }

    def value(path: str) -> Tensor:
        return loaded[path] if path in loaded else values(path)

    parts = [f"initial weights: {len(loaded)} of {len(entries)} tensors are loaded"]
    if missing := [name for name in entries if name not in loaded]:
        parts.append(f"not loaded, so as the model begins: {_listed(missing)}")
    if unused := [name for name in given if name not in entries]:
        parts.append(f"not used: {_listed(unused)}")
    return value, loaded, "; ".join(parts)


def _check(given: Mapping[str, Tensor], entries: Mapping[str, Tensor], init_from: InitFrom) -> None:
    unlike = [
        f"{name} has shape {tuple(value.shape)} there and {tuple(entries[name].shape)} in the model"
        for name, value in given.items()
        if name in entries and (value.shape or (1,)) != (entries[name].shape or (1,))
    ]
    if unlike:
        raise InitialValueError(
            f"weights do not fit the model: {'; '.join(unlike[:_MOST_NAMED])}. Leave them out, or rename them to names "
            "that the model does not have (InitFrom(rename={...}))"
        )
    if not any(name in entries for name in given):
        raise InitialValueError(
            f"no weight has a name of the model: there {_listed(given)}, here {_listed(entries)}. Map the beginnings of "
            "names, such as InitFrom(weights, rename={'module.': ''})"
        )


def _renamed(name: str, rename: Mapping[str, str]) -> str:
    """A name whose longest beginning that is to be renamed is replaced."""
    fitting = [old for old in rename if name.startswith(old)]
    if not fitting:
        return name
    old = max(fitting, key=len)
    return rename[old] + name.removeprefix(old)


def _given(weights: Mapping[str, Tensor] | Path) -> Mapping[str, Tensor]:
    return read_weights(weights) if isinstance(weights, Path) else weights


def _listed(names: Iterable[str]) -> str:
    known = list(names)
    rest = f" and {len(known) - _MOST_NAMED} more" if len(known) > _MOST_NAMED else ""
    return ", ".join(known[:_MOST_NAMED]) + rest
