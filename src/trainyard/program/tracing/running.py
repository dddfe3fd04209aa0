"""Running the code of a module as it is captured: on other tensors than its own, and without a trace on the module."""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from copy import copy
from dataclasses import dataclass
from types import FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.stateless import _reparametrize_module
from torch.utils import _pytree as pytree

from trainyard.program.random.positional import PositionalDraws
from trainyard.program.tracing.checkpoints import checkpoints_run_once
from trainyard.program.tracing.on_one_device import on_one_device
from trainyard.program.tracing.replaced_calls import ReplacedCalls
from trainyard.program.tracing.replaced_ops import ReplacedOps


@dataclass(frozen=True)
class Given:
    """Inputs of a captured step: fake parameters and buffers, a batch of these ``rows``, the counter of draws.

    Attributes
    ----------
    loss_scale : the factor of the loss in the backward pass, [] in float32; None where gradients are not scaled.
    """

    params: Mapping[str, Tensor]
    buffers: Mapping[str, Tensor]
    batch: Any
    rng: Tensor
    rows: int
    loss_scale: Tensor | None = None

    def own_batch(self) -> Any:
        """The batch, in containers of its own: a loss may put other tensors there."""
        return pytree.tree_map(lambda tensor: tensor, self.batch)

    @property
    def state(self) -> dict[str, Tensor]:
        """Parameters and buffers."""
        return {**self.params, **self.buffers}


Held = Sequence[tuple[Any, Any]]
"""Containers, and copies of what they hold."""

Watch = Callable[[PositionalDraws], AbstractContextManager[Any]]
"""A context in which a module runs, made of the random numbers that are on."""


@contextmanager
def running(
    module: nn.Module, state: Mapping[str, Tensor], rng: Tensor, rows: int, watch: Watch = nullcontext
) -> Iterator[PositionalDraws]:
    """Run a module as `stepping` does, and undo afterwards what its code set on it."""
    with untouched(module) as held, stepping(module, state, rng, rows, held, watch) as mode:
        yield mode


@contextmanager
def stepping(
    module: nn.Module,
    state: Mapping[str, Tensor],
    rng: Tensor,
    rows: int,
    held: Held,
    watch: Watch = nullcontext,
) -> Iterator[PositionalDraws]:
    """Within it a module has other parameters and buffers, and draws random numbers by position; yields what does.

    What is checkpointed runs once.
    """
    _make_parameters(module, state)
    with (
        torch.enable_grad(),
        PositionalDraws(rng, rows) as mode,
        checkpoints_run_once(),
        on_one_device(),
        ReplacedCalls(),
        ReplacedOps(),
        _shown_where_held(module, state, held),
        watch(mode),
        # A module that has two paths is given its tensors twice, and back in the order opposite to that.
        _reparametrize_module(module, dict(state), tie_weights=True, stack_weights=True),
    ):
        yield mode


def _make_parameters(module: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Let what stands for parameters be instances of ``nn.Parameter``, as PyTorch lets tensors of other classes be.

    Else what takes only parameters, such as a slice of ``nn.ParameterList``, would wrap them anew, and the gradient would
    go to the wrapper.
    """
    for name, _ in module.named_parameters():
        if name in state:
            state[name]._is_param = True  # type: ignore[attr-defined]


@contextmanager
def _shown_where_held(module: nn.Module, state: Mapping[str, Tensor], held: Held) -> Iterator[None]:
    """Within it, lists and dictionaries in which a module holds its own tensors once more hold the other ones, too."""
    named = (*module.named_parameters(), *module.named_buffers())
    other = {id(tensor): state[name] for name, tensor in named if name in state}
    registers = {id(register) for m in module.modules() for register in (m._parameters, m._buffers)}
    changed: list[tuple[Any, Any, Tensor]] = []
    for container, content in held:
        if id(container) in registers or isinstance(container, set):
            continue
        for key, value in content.items() if isinstance(content, dict) else enumerate(content):
            if id(value) in other:
                container[key] = other[id(value)]
                changed.append((container, key, value))
    try:
        yield
    finally:
        for container, key, value in changed:
            with suppress(LookupError):  # the module may have taken it out
                container[key] = value


@contextmanager
def untouched(module: nn.Module) -> Iterator[Held]:
    """Undo what a module's code sets on it, such as tensors that it remembers, or puts into its lists.

    So it is with objects that the module holds. Classes, globals and what functions close over keep what they get.
    Yields the containers in it, and what they hold.
    """
    held = _containers([vars(each) for each in module.modules()])
    try:
        yield held
    finally:
        for container, content in held:
            _refill(container, content)


# Others may refuse to be refilled.
_CONTAINERS = (list, dict, set, deque, OrderedDict, defaultdict)
_NO_CONTAINERS = (nn.Module, Tensor, type, FunctionType, MethodType, ModuleType)


def _containers(roots: Iterable[Any]) -> list[tuple[Any, Any]]:
    """The containers in some, and what they hold."""
    found: list[tuple[Any, Any]] = []
    seen: set[int] = set()
    left = list(roots)
    while left:
        value = left.pop()
        if id(value) in seen or isinstance(value, _NO_CONTAINERS):
            continue
        if not isinstance(value, (*_CONTAINERS, tuple)):
            left += [vars(value)] if hasattr(value, "__dict__") else []
            continue
        seen.add(id(value))
        if type(value) in _CONTAINERS:
            found.append((value, copy(value)))
        left += list(value.values()) if isinstance(value, dict) else value
    return found


def _refill(container: Any, content: Any) -> None:
    """Give a container back what it held, if that has changed."""
    if isinstance(container, dict):
        is_same = [*map(id, container), *map(id, container.values())] == [
            *map(id, content),
            *map(id, content.values()),
        ]
    else:
        is_same = [*map(id, container)] == [*map(id, content)]
    if not is_same:
        container.clear()
        container.extend(content) if isinstance(container, list | deque) else container.update(content)
