"""What a user's optimizer keeps beside tensors of its parameters' shapes: numbers, and tensors of whole parameters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from trainyard.job.optimizer.config import OWN_STATE
from trainyard.job.optimizer.kept import is_number, number_of, value_of
from trainyard.job.optimizer.own import GROUP, Optimizers
from trainyard.job.run.step.segments import Segment

__all__ = ["numbers_of", "set_group_numbers", "state_numbers", "tensors_of"]

_STATE = ".state"


def numbers_of(optimizers: Optimizers) -> dict[str, dict[str, Any]]:
    """Return the numbers of each group here, and those of its state, which are the same for all its parameters; as JSON
    has them."""
    found = {str(group[GROUP]): _numbers(group) for group in optimizers.param_groups}
    for group in optimizers.param_groups:
        found[f"{group[GROUP]}{_STATE}"] = _numbers(optimizers.state_of(group["params"][0]))
    return found


def _numbers(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: number_of(value) for key, value in values.items() if is_number(value) and key != GROUP}


def state_numbers(kept: Mapping[str, Any], group: Mapping[str, Any], device: torch.device) -> dict[str, Any]:
    """The numbers of the state of a parameter; tensors lie where PyTorch's optimizers have them."""
    on_device = bool(group.get("fused") or group.get("capturable"))
    place = device if on_device else torch.device("cpu")
    return {key: value_of(number, place) for key, number in kept.get(f"{group[GROUP]}{_STATE}", {}).items()}


def set_group_numbers(optimizers: Optimizers, kept: Mapping[str, Any]) -> None:
    """Give the groups the numbers that they had; an optimizer may count there."""
    for group in optimizers.param_groups:
        for key, number in kept.get(str(group[GROUP]), {}).items():
            group[key] = value_of(number, torch.device("cpu"))


def tensors_of(optimizers: Optimizers, segments: Iterable[Segment]) -> dict[str, dict[str, torch.Tensor]]:
    """The tensors that are kept of whole parameters, by their names in checkpoints and path."""
    found: dict[str, dict[str, torch.Tensor]] = {}
    for segment in segments:
        for key, value in optimizers.state_of(segment.part).items():
            if not is_number(value):
                found.setdefault(f"{OWN_STATE}{key}", {})[segment.paths[0]] = value
    return found
