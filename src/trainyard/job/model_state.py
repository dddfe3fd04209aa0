"""Bytes of model state per parameter: weights, gradients and what the optimizer keeps, shared by ZeRO or not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from trainyard.job.optimizer import OptimizerConfig
from trainyard.program.program import Program


@dataclass(frozen=True)
class StateBytes:
    """Bytes of model state per parameter.

    Attributes
    ----------
    weights : what the passes compute with.
    gradients : their sum over microbatches.
    optimizer : moments, and the float32 parameters where ``weights`` are shorter.
    frozen : all that is kept of a parameter that is not trained: its value, as the passes compute with it.
    """

    weights: int
    gradients: int
    optimizer: int
    frozen: int


ADAM_MIXED = StateBytes(2, 2, 12, 2)
"""Mixed precision with Adam as counted in ZeRO (arXiv 1910.02054, section 3.1): 2 + 2 + 12 = 16."""


def state_of(dtype: str, optimizer: OptimizerConfig, zero_stage: int = 0) -> StateBytes:
    """What the runtime keeps: float32 gradients always, float32 parameters beside 16-bit weights.

    With ZeRO stage 3 the 16-bit weights are made from the float32 ones whenever they are gathered.
    """
    moments = 4 * len(optimizer.moments)
    if dtype == "float32":
        return StateBytes(4, 4, moments, 4)
    return StateBytes(0 if zero_stage == 3 else 2, 4, 4 + moments, 2)


def num_trained(program: Program) -> int:
    """Number of parameter elements that are trained; ``Program.num_params`` counts the others, too."""
    return sum(program.nodes[i.node].meta["val"].numel() for i in program.params if i.trainable)


Count = TypeVar("Count", float, NDArray[np.float64])
"""A number of parameters, or one for each of several parts of a model."""


def model_state_bytes(
    num_params: Count, state: StateBytes, *, zero_stage: int, num_ranks: int, num_frozen: Count | float = 0.0
) -> Count:
    """Bytes of model state on one of the data-parallel ranks (arXiv 1910.02054, figure 1).

    Parameters
    ----------
    num_params : that are trained, of one rank's part of the model (the paper's Psi).
    zero_stage : 0 nothing is shared, 1 optimizer state (P_os), 2 also gradients (P_os+g), 3 also weights.
    num_ranks : data-parallel ranks (the paper's N_d).
    num_frozen : parameters that are not trained; stage 3 shares them as it does weights.

    Examples
    --------
    >>> model_state_bytes(7.5e9, ADAM_MIXED, zero_stage=2, num_ranks=64) / 1e9
    16.640625
    """
    shared = (state.optimizer, state.gradients, state.weights)
    total = float(sum(size / num_ranks if stage < zero_stage else size for stage, size in enumerate(shared)))
    return num_params * total + num_frozen * (state.frozen / num_ranks if zero_stage == 3 else state.frozen)
