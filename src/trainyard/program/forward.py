"""Capture of what a model computes without a gradient: one pass from its inputs to its outputs, as where it is served."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree

from trainyard.program.capture import capturing, fake_batch, fake_state, program_of
from trainyard.program.capture_error import CaptureError
from trainyard.program.model import Model
from trainyard.program.program import Output, Program
from trainyard.program.tracing.running import Given, running
from trainyard.program.tracing.trace import layers_recorded, trace

__all__ = ["capture_forward", "shortened_sequences"]


def capture_forward(model: Model, num_rows: int, dtype: torch.dtype = torch.float32) -> Program:
    """Trace one pass through a model's module, in evaluation mode.

    Parameters
    ----------
    model : its loss is run for the inputs of the module only; none of its tensors is read.
    num_rows : rows of the batch.
    dtype : compute precision, as in `trainyard.program.capture.capture`.

    Returns
    -------
    The program whose outputs are the tensors that the module returns, of kind ``value``, by their place.

    Raises
    ------
    CaptureError
        If the model reads a tensor's value to decide what to run, if its loss never runs its module, or runs it more
        than once.
    """
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    FakeTensorMode.cache_clear()  # as where a step is captured
    params, buffers, aliases = fake_state(model.module, fake, dtype)
    with fake:
        given = Given(
            params, buffers, fake_batch(model, num_rows), torch.zeros(3, dtype=torch.int64), num_rows
        )
    pass_ = _Pass(model, given)
    with fake, capturing(model.name, dtype), _evaluating(model.module), layers_recorded(model.module):
        graph_module = trace(pass_, given.params, given.buffers, given.batch, given.rng)
    outputs = tuple(Output("value", str(place)) for place in range(pass_.num_outputs))
    return replace(program_of(model, graph_module, given, outputs, frozenset(), dtype), aliases=aliases)


def shortened_sequences(model: Model, length: int) -> Model:
    """The same model with an example batch of shorter sequences.

    Parameters
    ----------
    length : of dim 1 of every entry of the batch that has one.
    """

    def shorter(value: Any) -> Any:
        return value[:, :length] if value.dim() > 1 else value

    return replace(model, batch=pytree.tree_map_only(Tensor, shorter, model.batch), lengths=None)


class _Pass:
    """The function that is traced."""

    def __init__(self, model: Model, given: Given) -> None:
        self.model, self.given = model, given
        self.num_outputs = 0

    def __call__(self, params: Any, buffers: Any, batch: Any, rng: Any) -> tuple[Tensor, ...]:
        module, returned = self.model.module, []
        handle = module.register_forward_hook(lambda _module, _given, result: returned.append(result))
        try:
            with running(module, params | buffers, rng, self.given.rows), torch.no_grad():
                self.model.loss(module, batch)
        finally:
            handle.remove()
        if len(returned) != 1:
            raise CaptureError(
                f"{self.model.name} cannot be captured without a gradient: its loss runs the module {len(returned)} "
                "times; allowed is once"
            )
        results = tuple(each for each in pytree.tree_leaves(returned[0]) if isinstance(each, Tensor))
        self.num_outputs = len(results)
        return results


@contextmanager
def _evaluating(module: nn.Module) -> Iterator[None]:
    """Within it, a module neither drops anything nor changes its statistics."""
    trained = [each for each in module.modules() if each.training]
    module.eval()
    try:
        yield
    finally:
        for each in trained:
            each.training = True
