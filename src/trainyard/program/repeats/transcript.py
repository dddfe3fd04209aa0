"""What the calls of blocks do in a run of the model: their ops, on what, and who else touches what is theirs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from trainyard.program.repeats.block import Call, tensors_of
from trainyard.program.repeats.equal import description, frozen, is_plain

_NUMBER = 3  # place of the number of the draw among the arguments of dropout


class Transcript:
    """One call of a block.

    Attributes
    ----------
    call : what it was given.
    ops : that ran in it, each with its arguments. A tensor is written as where its memory comes from (a parameter, an
        argument, an op) and how it lies there, so that two calls have equal ops if and only if they compute the same.
    result : what it returned, written in the same way.
    is_closed : whether all that it computes with is its own or was given to it, and all that it changes is its own.
    """

    def __init__(self, block: nn.Module, call: Call, rng: Tensor, first_draw: int) -> None:
        self.block, self.call, self.first_draw = block, call, first_draw
        self.ops: list[Any] = []
        self.result: Any = None
        self.is_closed = all(isinstance(leaf, Tensor) or is_plain(leaf) for leaf in call.leaves)
        self.made: dict[int, Tensor] = {}
        self._described = description(block, without="forward")
        self._hooks = _hooks(call)
        self._origin: dict[int, Any] = {}
        for number, tensor in enumerate((*call.state, *call.given, rng)):
            self._origin.setdefault(_memory(tensor), number)

    def note(self, op: Any, leaves: list[Any], names: tuple[str, ...], result: Any) -> None:
        """An op ran within the call."""
        arguments = [self._written(leaf) for leaf in leaves]
        if op is torch.ops.trainyard.dropout.default:
            arguments[_NUMBER] = leaves[_NUMBER] - self.first_draw
        for number, tensor in enumerate(tensors_of(result)):
            memory = _memory(tensor)
            if memory not in self._origin:
                self._origin[memory] = (len(self.ops), number)
                self.made[memory] = tensor  # kept, so that its memory is not used again
        self.ops.append((op, names, tuple(arguments), tuple(map(self._written, pytree.tree_leaves(result)))))

    def close(self, result: Any) -> None:
        """The call returned."""
        leaves, spec = pytree.tree_flatten(result)
        outputs = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        memories = [_memory(o) for o in outputs]
        self.result = spec, tuple(map(self._written, leaves)), tuple(o.requires_grad for o in outputs)
        self.is_closed &= all(isinstance(leaf, Tensor) or is_plain(leaf) for leaf in leaves)
        # What is returned is new, and each of it by itself: what happens to it later happens to nothing else.
        self.is_closed &= len(set(memories)) == len(memories) and all(m in self.made for m in memories)
        state = Call.of(self.block, (), {}).state
        self.is_closed &= len(state) == len(self.call.state) and all(map(_same, state, self.call.state))
        self.is_closed &= _hooks(self.call) == self._hooks
        self.is_closed &= description(self.block, without="forward") == self._described
        for memory in memories:
            self.made.pop(memory, None)

    def _written(self, leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return frozen(leaf)
        origin = self._origin.get(_memory(leaf))
        self.is_closed &= origin is not None
        return origin, tuple(leaf.shape), leaf.stride(), leaf.storage_offset(), leaf.dtype

    @property
    def key(self) -> Any:
        """Equal for two calls of which one may stand for the other."""
        return self.call.key, self._described, tuple(self.ops), self.result


class Recorder(TorchDispatchMode):
    """Writes transcripts of the calls of blocks, while it is on.

    Parameters
    ----------
    owner : path of the block that each parameter or buffer belongs to.

    Attributes
    ----------
    calls : transcripts by path.
    opened : paths of blocks of which something was used outside.
    differentiates : whether the model differentiates by itself, which asks more of a block than its one backward pass.
    """

    def __init__(self, owner: Mapping[Tensor, str]) -> None:
        super().__init__()
        self.calls: dict[str, list[Transcript]] = {}
        self.opened: set[str] = set()
        self.differentiates = False
        self._current: tuple[str, Transcript] | None = None
        self._owner = {_memory(tensor): path for tensor, path in owner.items()}

    def watched(self, path: str, block: nn.Module, mode: Any) -> Callable[..., Any]:
        """A block's forward, with a transcript; ``mode`` is the `CounterDropout` that is on."""
        plain = block.forward

        def forward(*args: Any, **kwargs: Any) -> Any:
            transcript = Transcript(block, Call.of(block, args, kwargs), mode.rng, mode.calls)
            self.calls.setdefault(path, []).append(transcript)
            before, self._current = self._current, (path, transcript)
            try:
                result = plain(*args, **kwargs)
            finally:
                self._current = before
            transcript.close(result)
            self._owner |= dict.fromkeys(transcript.made, path)
            return result

        return forward

    def used(self, tensors: Any) -> None:
        """Tensors are used here."""
        within = None if self._current is None else self._current[0]
        for tensor in tensors_of(tensors):
            owner = self._owner.get(_memory(tensor))
            if owner is not None and owner != within:
                self.opened.add(owner)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.prim.device.default and isinstance(args[0], FakeTensor):
            return args[0].fake_device  # PyTorch asks this more often than all else, and takes long to answer
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if not tensors_of(result) and not func._schema.is_mutable:
            return result  # a question, such as which device a tensor is on
        self.differentiates |= torch._C._current_graph_task_id() != -1
        with torch._C.DisableTorchFunction():
            leaves = pytree.tree_leaves((args, kwargs))
            self.used(leaves)
            if self._current is not None:
                self._current[1].note(func, leaves, tuple(kwargs), result)
        return result


def _memory(tensor: Tensor) -> int:
    if torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        return id(
            tensor
        )  # within vmap and the like; ops see what is in it, so that nothing is known of it here
    return int(tensor.untyped_storage()._cdata)


def _same(one: Any, other: Any) -> bool:
    return one is other


def _hooks(call: Call) -> tuple[int, ...]:
    """How many hooks there are on the gradients of what a block is given."""
    return tuple(len(t._backward_hooks or ()) for t in call.given)
