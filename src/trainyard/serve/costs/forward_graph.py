"""The graph of a language model without a gradient, for one sequence."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from trainyard.program.forward import capture_forward, shortened_sequences
from trainyard.program.model import Model
from trainyard.program.program import Program
from trainyard.serve.errors import ServeError

__all__ = ["forward_program"]

_PRIMES = (157, 127, 101, 97, 89, 79, 67, 61, 53, 43, 37, 31, 23, 19, 17, 13, 11, 7, 5)


def forward_program(model: Model) -> Program:
    """The forward graph of a model for one sequence, of a length that divides no size of the model.

    Raises
    ------
    ServeError
        If its example batch has shorter sequences than that, or it does not run on such a sequence.
    """
    sizes = {size for param in model.module.parameters() for size in param.shape}
    longest = max((int(each.shape[1]) for each in _tensors(model.batch) if each.dim() > 1), default=0)
    fitting = [each for each in _PRIMES if each <= longest and not any(size % each == 0 for size in sizes)]
    if not fitting:
        raise ServeError(
            f"{model.name} is no language model: its example batch has no sequences of more than {longest} tokens; give "
            "a language model, such as llama3-8b"
        )
    try:
        return capture_forward(shortened_sequences(model, fitting[0]), 1, torch.bfloat16)
    except (ValueError, RuntimeError) as error:
        raise ServeError(
            f"{model.name} cannot be run on one sequence of {fitting[0]} tokens ({error}); allowed are models of "
            "sequences of tokens, such as llama3-8b"
        ) from error


def _tensors(batch: object) -> Iterator[torch.Tensor]:
    leaves = torch.utils._pytree.tree_leaves(batch)
    return (leaf for leaf in leaves if isinstance(leaf, torch.Tensor))
