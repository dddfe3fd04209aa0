"""The ops that stand for blocks while a model is traced."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any
from unittest.mock import patch
from weakref import WeakValueDictionary

import torch
from torch import Tensor, nn

from trainyard.program.repeats.block import Call, Traced

# What the ops that stand for blocks compute, for as long as a capture needs it.
_known: WeakValueDictionary[int, Traced] = WeakValueDictionary()


class NotRepeatableError(Exception):
    """While a model is traced, a block turns out not to be what another was: all are to be traced themselves."""


@dataclass(eq=False)
class Repeats:
    """The blocks of one model while it is traced.

    Attributes
    ----------
    blocks : by path; all equal the one that is ``traced``. There are none where nothing repeats.
    placed : path and number of the first draw of every call that was replaced.
    """

    blocks: Mapping[str, nn.Module]
    traced: Traced | None
    placed: list[tuple[str, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.traced is not None:
            _known[id(self.traced)] = self.traced

    @cached_property
    def state(self) -> frozenset[str]:
        """Names of the blocks' parameters and buffers, which the model is traced without."""
        names = () if self.traced is None else self.traced.names
        return frozenset(f"{path}.{name}" for path in self.blocks for name in names)

    @contextmanager
    def replaced(self, mode: Any) -> Iterator[None]:
        """Within it, calls of the blocks are single ops; ``mode`` is the `PositionalDraws` that is on."""
        with ExitStack() as stack:
            for path, block in self.blocks.items():
                stack.enter_context(patch.object(block, "forward", self.stand_in(path, block, mode)))
            yield

    def stand_in(self, path: str, block: nn.Module, mode: Any) -> Callable[..., Any]:
        """What does a block's work as a single op."""
        traced = self.traced
        assert traced is not None

        def forward(*args: Any, **kwargs: Any) -> Any:
            call = Call.of(block, args, kwargs)
            if call.given_key != traced.given_key:
                raise NotRepeatableError
            self.placed.append((path, mode.calls))
            mode.calls += traced.num_draws
            return traced.rebuild(_Replaced.apply(traced, len(self.placed) - 1, *call.given, mode.rng))

        return forward


class _Replaced(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, traced: Traced, index: int, *tensors: Tensor) -> tuple[Tensor, ...]:  # type: ignore[override]
        ctx.traced, ctx.index = traced, index
        ctx.set_materialize_grads(False)
        return tuple(torch.ops.trainyard.block_forward(list(tensors), id(traced), index))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        # The block was traced with a gradient for everything that it returns, and without gradients of gradients.
        if torch.is_grad_enabled() or any(g is None for g in grads):
            raise NotRepeatableError
        # As they were when the block was traced.
        given = [g.contiguous() for g in grads if g is not None]
        found = iter(torch.ops.trainyard.block_backward(given, id(ctx.traced), ctx.index))
        return None, None, *(next(found) if has else None for has in ctx.traced.given_has_grad)


torch.library.define("trainyard::block_forward", "(Tensor[] inputs, int block, int index) -> Tensor[]")
torch.library.define("trainyard::block_backward", "(Tensor[] grads, int block, int index) -> Tensor[]")


@torch.library.register_fake("trainyard::block_forward")
def _block_forward(inputs: list[Tensor], block: int, index: int) -> list[Tensor]:
    return _like(_known[block].outputs)


@torch.library.register_fake("trainyard::block_backward")
def _block_backward(grads: list[Tensor], block: int, index: int) -> list[Tensor]:
    return _like(_known[block].input_grads)


def _like(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Others that lie in memory as these do, gaps and all: whether a view of one can be taken depends on that."""
    return [torch.empty_strided(t.size(), t.stride(), dtype=t.dtype, device=t.device) for t in tensors]
