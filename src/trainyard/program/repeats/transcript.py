"""What the calls of blocks do in a run of the model: their ops, on what, and who else touches what is theirs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import BackwardCFunction
from torch.utils import _pytree as pytree

from trainyard.program.op_observer import OpObserver, storage_id, tensors_of
from trainyard.program.random.positional import SALT
from trainyard.program.repeats.block import Call
from trainyard.program.repeats.equal import description, frozen, is_plain


class Ops:
    """Ops that ran, each with its arguments.

    A tensor is written as where its memory comes from (what was given, or an op) and how it lies there: two runs have
    equal ops if and only if they compute the same.

    Attributes
    ----------
    made : memory of these ops' results.
    is_closed : whether nothing was used that was neither given nor made.
    """

    def __init__(self, given: Iterable[Tensor]) -> None:
        self.ops: list[Any] = []
        self.made: set[int] = set()
        self.is_closed = True
        self._origin: dict[int, Any] = {}
        self._kept: list[Tensor] = []  # so that no memory is used again
        for number, tensor in enumerate(given):
            self.comes_from(number, tensor)

    def comes_from(self, origin: Any, tensor: Tensor) -> None:
        """Say where the memory of a tensor comes from, if that is not known."""
        self._origin.setdefault(storage_id(tensor), origin)
        self._kept.append(tensor)

    def note(
        self, op: Any, leaves: Sequence[Any], names: tuple[str, ...], result: Any, first_draw: int = 0
    ) -> None:
        """An op ran; its draws are counted from the first."""
        arguments = list(self.comparable(leaves))
        if (
            op is torch.ops.trainyard.dropout.default
        ):  # other draws are seen as the ops of PyTorch that they are
            arguments[SALT] = leaves[SALT] - first_draw
        for number, tensor in enumerate(tensors_of(result)):
            if storage_id(tensor) not in self._origin:
                self.comes_from((len(self.ops), number), tensor)
                self.made.add(storage_id(tensor))
        self.ops.append((op, names, tuple(arguments), self.comparable(pytree.tree_leaves(result))))

    def comparable(self, leaves: Iterable[Any]) -> tuple[Any, ...]:
        """Arguments or results in a form to compare by."""
        return tuple(self._tensor(leaf) if isinstance(leaf, Tensor) else frozen(leaf) for leaf in leaves)

    def _tensor(self, tensor: Tensor) -> Any:
        origin = self._origin.get(storage_id(tensor))
        self.is_closed &= origin is not None
        return origin, tuple(tensor.shape), tensor.stride(), tensor.storage_offset(), tensor.dtype


class Transcript(Ops):
    """One call of a block.

    Attributes
    ----------
    call : what it was given.
    result : what it returned.
    is_closed : whether, beside that, all that it changes is its own.
    """

    def __init__(self, block: nn.Module, call: Call, rng: Tensor, first_draw: int) -> None:
        super().__init__((*call.state, *call.given, rng))
        self.block, self.call, self.first_draw = block, call, first_draw
        self.result: Any = None
        self._described = description(block, without="forward")

    def close(self, result: Any) -> list[Tensor]:
        """The call returned; its output tensors."""
        leaves, spec = pytree.tree_flatten(result)
        outputs = tensors_of(leaves)
        self.result = spec, self.comparable(leaves), tuple(o.requires_grad for o in outputs)
        others = [x for x in (*self.call.leaves, *leaves) if not isinstance(x, Tensor)]
        state = Call.of(self.block, (), {}).state
        self.is_closed &= (
            all(map(is_plain, others))
            and self._returns_its_own(outputs)
            and [*map(id, state)] == [*map(id, self.call.state)]
            and not _has_own_backward(outputs, self.call.given)
            and description(self.block, without="forward") == self._described
        )
        self.made.difference_update(map(storage_id, outputs))
        return outputs

    def _returns_its_own(self, outputs: Sequence[Tensor]) -> bool:
        """Whether what happens later to an output happens to nothing else: it is new, and all of its memory."""
        memories = [storage_id(o) for o in outputs]
        return (
            all(m in self.made for m in memories)
            and len(set(memories)) == len(memories)
            and all(o.untyped_storage().nbytes() == o.numel() * o.element_size() for o in outputs)
        )

    @property
    def key(self) -> Any:
        """Equal for two calls of which one may stand for the other."""
        return self.call.key, self._described, tuple(self.ops), self.result


class Recorder(OpObserver):
    """Writes transcripts of the calls of blocks, and of what is around them, while it is on.

    Parameters
    ----------
    owner : path of the block that each parameter or buffer belongs to.
    given : all tensors that the model is given.

    Attributes
    ----------
    calls : transcripts by path.
    around : ops outside of the calls, and the calls among them.
    leaked : paths of blocks of which something was used outside.
    differentiates : whether the model differentiates by itself, which asks more of a block than its one backward pass.
    """

    def __init__(self, owner: Mapping[Tensor, str], given: Iterable[Tensor]) -> None:
        super().__init__()
        self.calls: dict[str, list[Transcript]] = {}
        self.around = Ops(given)
        self.leaked: set[str] = set()
        self.differentiates = False
        self._current: tuple[str, Transcript] | None = None
        self._owner = {storage_id(tensor): path for tensor, path in owner.items()}

    def watched(
        self, path: str, block: nn.Module, mode: Any, plain: Callable[..., Any]
    ) -> Callable[..., Any]:
        """A block's forward, with a transcript.

        Parameters
        ----------
        mode : the `PositionalDraws` that is on.
        plain : the forward, or what stands for it.
        """

        def forward(*args: Any, **kwargs: Any) -> Any:
            transcript = Transcript(block, Call.of(block, args, kwargs), mode.rng, mode.calls)
            self.calls.setdefault(path, []).append(transcript)
            self.around.ops.append((path, self.around.comparable(transcript.call.given)))
            before, self._current = self._current, (path, transcript)
            try:
                result = plain(*args, **kwargs)
            except BaseException:
                transcript.is_closed = False
                raise
            finally:
                self._current = before
            for number, output in enumerate(transcript.close(result)):
                self.around.comes_from((path, number), output)
            self._owner |= dict.fromkeys(transcript.made, path)
            return result

        return forward

    def returned(self, result: Any) -> None:
        """The model returned."""
        self._used(result)
        self.around.ops.append(self.around.comparable(tensors_of(result)))

    def _used(self, tensors: Any) -> None:
        within = None if self._current is None else self._current[0]
        for tensor in tensors_of(tensors):
            owner = self._owner.get(storage_id(tensor))
            if owner is not None and owner != within:
                self.leaked.add(owner)

    def hooked(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        """``Tensor.register_hook``: what a hook does in the backward pass is not seen."""

        def register_hook(tensor: Tensor, hook: Callable[..., Any]) -> Any:
            if self._current is not None:
                self._current[1].is_closed = False
            return plain(tensor, hook)

        return register_hook

    def before(self, op: Any, leaves: Sequence[Any], names: tuple[str, ...]) -> Any:
        return leaves, names

    def after(self, op: Any, known: Any, args: Any, kwargs: Mapping[str, Any], result: Any) -> None:
        leaves, names = known
        self.differentiates |= torch._C._current_graph_task_id() != -1
        self._used(leaves)
        ops, first_draw = self.around, 0
        if self._current is not None:
            ops = self._current[1]
            first_draw = self._current[1].first_draw
        ops.note(op, leaves, names, result, first_draw)


def _has_own_backward(outputs: Iterable[Tensor], given: Iterable[Tensor]) -> bool:
    """Whether Python code of the model's takes part in the backward pass from outputs to what was given.

    What it does there is not seen. That of registered ops is the same in every call.
    """
    seen = {t.grad_fn for t in given}
    left = [o.grad_fn for o in outputs]
    while left:
        node = left.pop()
        if node is None or node in seen:
            continue
        if isinstance(node, BackwardCFunction) and not node.name().startswith("GeneratedBackwardFor_"):
            return True
        seen.add(node)
        left += (before for before, _ in node.next_functions)
    return False
