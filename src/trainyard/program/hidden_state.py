"""State that a model keeps anywhere but in buffers: a counter, a tensor as attribute, what its loss remembers.

The first step of a model is captured. In its graph such state would stay at its first value. So a model whose second step
computes something else than its first is refused.
"""

from __future__ import annotations

import ctypes
import pickle
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, disable_fake_tensor_cache
from torch.utils import _pytree as pytree

from trainyard.program.capture_error import CaptureError
from trainyard.program.model import Model
from trainyard.program.op_observer import OpObserver, frames_now, line_of_model, storage_id, tensors_of
from trainyard.program.repeats import Repeats
from trainyard.program.repeats.equal import frozen
from trainyard.program.tracing.running import Given, Held, stepping, untouched

_SEED = 0x5EED_0F_0C0DE


def refuse_hidden_state(model: Model, given: Given, repeats: Repeats) -> None:
    """Run two steps of a model, of which the second finds what the first left on the module, on fake tensors.

    State of which nothing is seen in two steps, such as a counter that changes something at its 100th, is not found.
    State inside blocks that ``repeats`` replaces is not looked for: these were seen to leave nothing on themselves.

    Raises
    ------
    CaptureError
        If a step writes to a parameter, draws random numbers outside of PyTorch, or the second one computes something
        else than the first.
    """
    values = _Values()
    assert isinstance(given.rng, FakeTensor)
    # From its cache PyTorch tells in another way than at first which results of an op share memory.
    # And it optimises scripts when they run a second time.
    with (
        untouched(model.module) as held,
        disable_fake_tensor_cache(given.rng.fake_mode),
        torch.jit.optimized_execution(False),  # type: ignore[attr-defined]
        torch.random.fork_rng(devices=()),
    ):
        drawn = _generators()
        # A seed of our own, so that a model that sets one is noticed, also if it has before.
        torch.manual_seed(_SEED)
        first, written = _step(model, given, repeats, values, held)
        if written is not None:
            raise CaptureError(
                f"{model.name} cannot be captured: it writes to its parameter {written} while it computes the loss. "
                "Make it a buffer, or compute with a changed copy"
            )
        if _generators() != drawn:
            raise CaptureError(
                f"{model.name} cannot be captured: it draws random numbers of Python or NumPy, which would be the same "
                "in all steps. Draw them outside, and give them as a tensor of the batch"
            )
        if torch.initial_seed() != _SEED:
            raise CaptureError(
                f"{model.name} cannot be captured: it seeds PyTorch's random numbers while it computes the loss. They "
                "are drawn by position, from the seed of the training: leave torch.manual_seed out. To use the same "
                "numbers in all steps, keep them in a buffer"
            )
        values.is_second = True
        second, _ = _step(model, given, repeats, values, held)
    if second != first:
        line = values.first_line_behind(second, first)
        where = f", from {line} on" if line else ""
        raise CaptureError(
            f"{model.name} cannot be captured: its second step computes something else than its first{where}. What it "
            "keeps from step to step, such as a counter or a running mean, must be a tensor that register_buffer makes "
            "known"
        )


def _step(
    model: Model, given: Given, repeats: Repeats, values: _Values, held: Held
) -> tuple[list[Any], str | None]:
    """Return the results of a step, and a parameter that it writes to."""
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

    with stepping(model.module, state, given.rng, given.rows, held, watch):
        result = model.loss(model.module, given.own_batch())
        params, kept = dict(model.module.named_parameters()), dict(model.module.named_buffers())
        grads = _gradients(result[0] if isinstance(result, tuple) else result, given.params.values())
    written = (n for n, p in given.params.items() if params.get(n, p) is not p or values.of(p) != before[n])
    return [*values.comparable(pytree.tree_leaves((result, kept, grads)))], next(written, None)


def _gradients(loss: Any, params: Iterable[Tensor]) -> Sequence[Tensor | None]:
    trained = [p for p in params if p.requires_grad]
    if not trained or not isinstance(loss, Tensor) or loss.dim() or not loss.requires_grad:
        return ()  # what is wrong with that is said when it is traced
    with torch.autocast("cpu", enabled=False):
        return torch.autograd.grad(loss, trained, allow_unused=True)


def _generators() -> Any:
    """The state of random numbers that are not PyTorch's."""
    return random.getstate(), pickle.dumps(np.random.get_state())


class _Values(OpObserver):
    """Numbers the values that ops compute while it is on: equal numbers are equal computations from equal inputs.

    The number of a tensor is that of its storage, which changes when an op writes to it.

    Attributes
    ----------
    is_second : whether a second step runs.
    """

    def __init__(self) -> None:
        super().__init__()
        self.is_second = False
        self._numbers: dict[Any, int] = {}
        self._from_inputs: set[int] = set()  # numbers of what a step computes from what it is given
        self._of_storage: dict[int, int] = {}
        self._kept: list[Tensor] = []  # so that no storage is used again
        # Of values that only the second step computes: where, and from which others.
        self._new: dict[int, tuple[str, list[int]]] = {}

    def begin(self, given: Mapping[str, Tensor]) -> None:
        """A step begins, with other inputs than the one before: what that computed from its own is known no more."""
        for where, number in self._of_storage.items():
            if number in self._from_inputs:
                self._of_storage[where] = self._number(("earlier", number), from_inputs=True)
        for name, tensor in given.items():
            self._give(tensor, self._number(("given", name), from_inputs=True))

    def of(self, tensor: Tensor) -> int:
        """The number of a tensor's storage."""
        found = self._of_storage.get(storage_id(tensor))
        return self._give(tensor, self._number(_content(tensor), False)) if found is None else found

    def comparable(self, leaves: Sequence[Any]) -> tuple[Any, ...]:
        """Arguments or results in a form to compare by."""
        return tuple(self._tensor(leaf) if isinstance(leaf, Tensor) else frozen(leaf) for leaf in leaves)

    def first_line_behind(self, second: Sequence[Any], first: Sequence[Any]) -> str:
        """Return the line at which the second step computed the first value that differs; "" if none is new."""
        left = [value[0] for value, other in zip(second, first, strict=False) if value != other]
        behind: set[int] = set()
        while left:
            number = left.pop()
            if number in self._new and number not in behind:
                behind.add(number)
                left += self._new[number][1]
        return self._new[min(behind)][0] if behind else ""

    def _tensor(self, tensor: Tensor) -> Any:
        lies = tuple(tensor.shape), tensor.stride(), tensor.storage_offset(), tensor.dtype
        return self.of(tensor), lies, tensor.requires_grad

    def _give(self, tensor: Tensor, number: int) -> int:
        self._kept.append(tensor)
        self._of_storage[storage_id(tensor)] = number
        return number

    def _number(self, value: Any, from_inputs: bool) -> int:
        number = self._numbers.setdefault(value, len(self._numbers))
        if from_inputs:
            self._from_inputs.add(number)
        return number

    def before(self, op: Any, leaves: Sequence[Any], names: tuple[str, ...]) -> Any:
        return (op, names, self.comparable(leaves)), [self.of(tensor) for tensor in tensors_of(leaves)]

    def after(self, op: Any, known: Any, args: Any, kwargs: Mapping[str, Any], result: Any) -> None:
        value, sources = known
        from_inputs = not self._from_inputs.isdisjoint(sources)
        changed = _written_to(op, args, kwargs)
        made = [t for t in tensors_of(result) if storage_id(t) not in self._of_storage]
        for place, tensor in enumerate((*changed, *made)):
            count = len(self._numbers)
            number = self._give(tensor, self._number((*value, place), from_inputs))
            if self.is_second and number == count:
                self._new[number] = line_of_model(frames_now()), sources


def _written_to(op: Any, args: Any, kwargs: Mapping[str, Any]) -> list[Tensor]:
    if not op._schema.is_mutable:
        return []
    declared = op._schema.arguments
    given = {a.name: value for a, value in zip(declared, args, strict=False)} | dict(kwargs)
    return tensors_of([given.get(a.name) for a in declared if a.alias_info and a.alias_info.is_write])


def _content(tensor: Tensor) -> Any:
    """Return the content of a tensor that the model was not given, if it can be read."""
    if isinstance(tensor, FakeTensor) or tensor.device.type != "cpu" or tensor.layout != torch.strided:
        return "constant", storage_id(tensor)
    storage = tensor.untyped_storage()
    return "constant", ctypes.string_at(storage.data_ptr(), storage.nbytes())
