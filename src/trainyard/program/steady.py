"""Whether the steps of a model compute what its first one computes, which is the one that is captured.

State that a model keeps anywhere but in buffers (a counter, a tensor as attribute, what its loss remembers) would stay at
its first value in a graph.
"""

from __future__ import annotations

import ctypes
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from trainyard.program.model import Model
from trainyard.program.repeats import Repeats
from trainyard.program.repeats.block import tensors_of
from trainyard.program.repeats.equal import frozen
from trainyard.program.running import Given, stepping, untouched
from trainyard.program.tracing import line_of_model, memory


def why_unsteady(model: Model, given: Given, repeats: Repeats) -> str | None:
    """Run two steps of a model, of which the second finds what the first left on the module, on fake tensors.

    State of which nothing is seen in two steps, such as a counter that changes something at its 100th, is not found;
    nor is that of blocks which ``repeats`` replaces, as these were seen to leave nothing on themselves.

    Returns
    -------
    Why another step would not be the first again, to follow the model's name; None if it would.
    """
    values = _Values()
    with untouched(model.module):
        first, written = _step(model, given, repeats, values)
        if written is not None:
            return (
                f"it writes to its parameter {written} while it computes the loss. Make it a buffer, or compute with a "
                "changed copy"
            )
        values.is_second = True
        second, _ = _step(model, given, repeats, values)
    if second == first:
        return None
    where = f", from {values.differs_at} on" if values.differs_at else ""
    return (
        f"its second step computes something else than its first{where}. What it keeps from step to step, such as a "
        "counter or a running mean, must be a tensor that register_buffer makes known"
    )


def _step(model: Model, given: Given, repeats: Repeats, values: _Values) -> tuple[Any, str | None]:
    """What a step computes, and a parameter that it writes to."""
    buffers = {name: torch.empty_like(buffer) for name, buffer in given.buffers.items()}
    state = {**given.params, **buffers}
    batch = {str(i): leaf for i, leaf in enumerate(pytree.tree_leaves(given.batch))}
    values.begin({**state, **batch, "rng": given.rng})
    before = {name: values.of(parameter) for name, parameter in given.params.items()}
    trial = Repeats(repeats.blocks, repeats.traced)

    @contextmanager
    def watch(mode: Any) -> Iterator[None]:
        with trial.replaced(mode), values:
            yield

    with stepping(model.module, state, given.rng, given.rows, watch):
        loss = model.loss(model.module, given.batch)
        params, kept = dict(model.module.named_parameters()), dict(model.module.named_buffers())
    written = (n for n, p in given.params.items() if params.get(n, p) is not p or values.of(p) != before[n])
    return values.written(pytree.tree_leaves((loss, kept))), next(written, None)


class _Values(TorchDispatchMode):
    """Numbers the values that ops compute while it is on: equal numbers are equal computations from equal inputs.

    The number of a tensor is that of its memory, which changes when an op writes to it.

    Attributes
    ----------
    is_second : whether a second step runs.
    differs_at : the line that computed the first value which the first step did not.
    """

    def __init__(self) -> None:
        super().__init__()
        self.is_second = False
        self.differs_at = ""
        self._numbers: dict[Any, int] = {}
        self._from_inputs: set[int] = set()  # numbers of what a step computes from what it is given
        self._of_memory: dict[int, int] = {}
        self._kept: list[Tensor] = []  # so that no memory is used again

    def begin(self, given: Mapping[str, Tensor]) -> None:
        """A step begins, with other inputs than the one before: what that computed from its own is known no more."""
        for where, number in self._of_memory.items():
            if number in self._from_inputs:
                self._of_memory[where] = self._number(("earlier", number), from_inputs=True)
        for name, tensor in given.items():
            self._give(tensor, self._number(("given", name), from_inputs=True))

    def of(self, tensor: Tensor) -> int:
        """The number of a tensor's memory."""
        found = self._of_memory.get(memory(tensor))
        return self._give(tensor, self._number(_content(tensor), False)) if found is None else found

    def written(self, leaves: list[Any]) -> tuple[Any, ...]:
        """Arguments or results to compare by."""
        return tuple(self._tensor(leaf) if isinstance(leaf, Tensor) else frozen(leaf) for leaf in leaves)

    def _tensor(self, tensor: Tensor) -> Any:
        lies = tuple(tensor.shape), tensor.stride(), tensor.storage_offset(), tensor.dtype
        return self.of(tensor), lies, tensor.requires_grad

    def _give(self, tensor: Tensor, number: int) -> int:
        self._kept.append(tensor)
        self._of_memory[memory(tensor)] = number
        return number

    def _number(self, value: Any, from_inputs: bool) -> int:
        number = self._numbers.setdefault(value, len(self._numbers))
        if from_inputs:
            self._from_inputs.add(number)
        return number

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.prim.device.default and isinstance(args[0], FakeTensor):
            return args[0].fake_device  # PyTorch asks this more often than all else, and takes long to answer
        kwargs = kwargs or {}
        with torch._C.DisableTorchFunction():
            leaves = pytree.tree_leaves((args, kwargs))
            value = func, tuple(kwargs), self.written(leaves)
            from_inputs = any(self.of(t) in self._from_inputs for t in tensors_of(leaves))
        result = func(*args, **kwargs)
        with torch._C.DisableTorchFunction():
            known = len(self._numbers)
            changed = _written_to(func, args, kwargs)
            made = [t for t in tensors_of(result) if memory(t) not in self._of_memory]
            for place, tensor in enumerate((*changed, *made)):
                self._give(tensor, self._number((*value, place), from_inputs))
        if self.is_second and not self.differs_at and len(self._numbers) > known:
            self.differs_at = line_of_model(traceback.extract_stack())
        return result


def _written_to(func: Any, args: Any, kwargs: Mapping[str, Any]) -> list[Tensor]:
    if not func._schema.is_mutable:
        return []
    declared = func._schema.arguments
    given = {a.name: value for a, value in zip(declared, args, strict=False)} | dict(kwargs)
    return tensors_of([given.get(a.name) for a in declared if a.alias_info and a.alias_info.is_write])


def _content(tensor: Tensor) -> Any:
    """What a tensor that the model was not given holds, where that can be read."""
    if isinstance(tensor, FakeTensor) or tensor.device.type != "cpu" or tensor.layout != torch.strided:
        return "constant", memory(tensor)
    storage = tensor.untyped_storage()
    return "constant", ctypes.string_at(storage.data_ptr(), storage.nbytes())
