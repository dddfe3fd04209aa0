"""Running the code of a module as it is captured: on other tensors than its own, and without a trace on the module."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.stateless import _reparametrize_module

from trainyard.program.random import CounterDropout

Watch = Callable[[CounterDropout], AbstractContextManager[Any]]
"""What a module runs within, given the dropout that is on."""


@contextmanager
def running(
    module: nn.Module, state: Mapping[str, Tensor], rng: Tensor, rows: int, watch: Watch = nullcontext
) -> Iterator[CounterDropout]:
    """Within it a module has other parameters and buffers, and draws its dropout by position; yields that dropout.

    The backward pass belongs within it, too: what is checkpointed runs once more there.
    """
    with (
        torch.enable_grad(),
        _untouched(module),
        CounterDropout(rng, rows) as mode,
        watch(mode),
        # A module that has two paths is given its tensors twice, and back in the order opposite to that.
        _reparametrize_module(module, dict(state), tie_weights=True, stack_weights=True),
    ):
        yield mode


@contextmanager
def _untouched(module: nn.Module) -> Iterator[None]:
    """Attributes that a module's code sets on it, such as tensors that it remembers, are afterwards what they were."""
    before = [(each, dict(vars(each))) for each in module.modules()]
    try:
        yield
    finally:
        for each, own in before:
            for added in vars(each).keys() - own.keys():
                del vars(each)[added]
            vars(each).update(own)
