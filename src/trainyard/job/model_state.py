"""Bytes of model state per parameter: its value, its gradient and what the optimizer keeps, divided over ranks or not."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from trainyard.job.optimizer import OptimizerConfig
from trainyard.program.program import Program
from trainyard.program.tracing.conversions import HALF
from trainyard.program.tracing.precision import parameter_type


@dataclass(frozen=True)
class StateBytes:
    """Bytes of model state per parameter.

    Attributes
    ----------
    parameters : what the passes compute with.
    gradients : their sum over microbatches.
    optimizer : moments, and the float32 parameters where ``parameters`` are shorter.
    frozen : all that is kept of a parameter that is not trained: its value, as the passes compute with it.
    """

    parameters: float
    gradients: float
    optimizer: float
    frozen: float


@dataclass(frozen=True)
class ParameterTypes:
    """The types in which a model's parameters are computed with.

    Attributes
    ----------
    half_share : share of the trained elements that are in 16 bits, the others being in float32.
    frozen_element_bytes : mean size of an element that is not trained.
    """

    half_share: float
    frozen_element_bytes: float

    @staticmethod
    def of(module: nn.Module, dtype: torch.dtype) -> ParameterTypes:
        """Return the types of a module in a step of precision ``dtype``."""
        sizes = [(p.requires_grad, p.numel(), parameter_type(p, dtype)) for p in module.parameters()]
        trained = sum(size for is_trained, size, _ in sizes if is_trained)
        in_half = sum(size for is_trained, size, kind in sizes if is_trained and kind in HALF)
        frozen = [(size, size * kind.itemsize) for is_trained, size, kind in sizes if not is_trained]
        num_frozen, frozen_bytes = (sum(each) for each in zip((0, 0), *frozen, strict=True))
        return ParameterTypes(in_half / max(1, trained), frozen_bytes / max(1, num_frozen))


ADAM_MIXED = StateBytes(2, 2, 12, 2)
"""Mixed precision with Adam as counted in ZeRO (arXiv 1910.02054, section 3.1): 2 + 2 + 12 = 16."""


def state_of(types: ParameterTypes, optimizer: OptimizerConfig, divided: Collection[str] = ()) -> StateBytes:
    """Return the state that the runtime keeps: float32 gradients always, float32 parameters beside 16-bit ones.

    Where parameters are ``divided``, 16-bit ones are made from the float32 ones whenever they are gathered.
    """
    kept = 0 if "parameters" in divided else 2
    parameters = kept * types.half_share + 4 * (1 - types.half_share)
    kept_bytes = 4 * types.half_share + optimizer.state_bytes
    return StateBytes(parameters, 4, kept_bytes, types.frozen_element_bytes)


def trained_shapes(module: nn.Module) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the parameters that are trained, by path."""
    return {path: tuple(p.shape) for path, p in module.named_parameters() if p.requires_grad}


def num_trained(program: Program) -> int:
    """Number of parameter elements that are trained; ``Program.num_params`` counts the others, too."""
    return sum(program.nodes[i.node].meta["val"].numel() for i in program.params if i.trainable)


Count = TypeVar("Count", float, NDArray[np.float64])
"""A number of parameters, or one for each of several parts of a model."""


def model_state_bytes(
    num_params: Count,
    state: StateBytes,
    *,
    divided: Collection[str],
    num_ranks: int,
    num_frozen: Count | float = 0.0,
) -> Count:
    """Bytes of model state on one of the ranks that sum gradients (arXiv 1910.02054, figure 1).

    Parameters
    ----------
    num_params : that are trained, of one rank's part of the model (the paper's Psi).
    divided : what is divided over the ranks: optimizer (P_os), gradients (P_os+g), parameters (P_os+g+p).
    num_ranks : the paper's N_d.
    num_frozen : parameters that are not trained; they are divided where parameters are.

    Examples
    --------
    >>> model_state_bytes(7.5e9, ADAM_MIXED, divided=("optimizer", "gradients"), num_ranks=64) / 1e9
    16.640625
    """
    parts = {"optimizer": state.optimizer, "gradients": state.gradients, "parameters": state.parameters}
    total = float(sum(size / num_ranks if part in divided else size for part, size in parts.items()))
    return num_params * total + num_frozen * (state.frozen / (num_ranks if "parameters" in divided else 1))
