"""Which blocks of a model can be replaced, and what by."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from trainyard.program.repeats.block import Call, Traced, trace_block
from trainyard.program.repeats.equal import repeated_blocks
from trainyard.program.repeats.stand_in import Repeats


class _FirstCallError(Exception):
    """The block that is to be traced was called."""

    def __init__(self, call: Call, rng: Tensor) -> None:
        self.call, self.rng = call, rng


def find_repeats(
    module: nn.Module, rows: int, state: Mapping[str, Tensor], run: Callable[[Any], Any]
) -> Repeats:
    """Trace one of the repeated blocks of a model, if there are any.

    Parameters
    ----------
    rows : of the batch.
    state : fake parameters and buffers by name.
    run : runs the model on them as it will be traced, within the context that it is given.
    """
    blocks = repeated_blocks(module)
    if not blocks:
        return Repeats({}, None)
    # The second, because the first may work on the batch itself, which has no gradient.
    block = list(blocks.values())[1]
    traced = _trace_called(block, rows, run)
    if traced is None:
        return Repeats({}, None)
    return Repeats(_replaceable(blocks, traced, state, run), traced)


def _trace_called(block: nn.Module, rows: int, run: Callable[[Any], Any]) -> Traced | None:
    """The graph of a block as it is first called; None if it is not, or works on nothing that has a gradient."""

    @contextmanager
    def watched(mode: Any) -> Iterator[None]:
        def forward(*args: Any, **kwargs: Any) -> Any:
            raise _FirstCallError(Call.of(block, args, kwargs), mode.rng)

        with patch.object(block, "forward", forward):
            yield

    try:
        run(watched)
    except _FirstCallError as reached:
        if any(t.requires_grad for t in reached.call.given):
            return trace_block(block, reached.call, reached.rng, rows)
    return None


class _Readers(TorchDispatchMode):
    """Notes whose parameters and buffers ops read."""

    def __init__(self, owner: Mapping[int, str]) -> None:
        super().__init__()
        self.owner, self.read = owner, set[str]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        self.read.update(self.owner[id(x)] for x in pytree.tree_leaves((args, kwargs)) if id(x) in self.owner)
        return func(*args, **kwargs)


def _replaceable(
    blocks: Mapping[str, nn.Module], traced: Traced, state: Mapping[str, Tensor], run: Callable[[Any], Any]
) -> dict[str, nn.Module]:
    """The blocks that are called once, as the traced one was, and whose parameters and buffers nobody else reads."""
    own = {path: [f"{path}.{name}" for name in traced.names] for path in blocks}
    own = {path: names for path, names in own.items() if all(name in state for name in names)}
    readers = _Readers({id(state[name]): path for path, names in own.items() for name in names})
    calls, differing = Counter[str](), set[str]()
    trial = Repeats(blocks, traced)

    def counted(path: str, block: nn.Module, mode: Any) -> Callable[..., Any]:
        plain, stand_in = block.forward, trial.stand_in(path, block, mode)

        def forward(*args: Any, **kwargs: Any) -> Any:
            calls[path] += 1
            if Call.of(block, args, kwargs).key == traced.key:
                return stand_in(*args, **kwargs)
            differing.add(path)
            return plain(*args, **kwargs)

        return forward

    @contextmanager
    def watched(mode: Any) -> Iterator[None]:
        with ExitStack() as stack:
            for path, block in blocks.items():
                stack.enter_context(patch.object(block, "forward", counted(path, block, mode)))
            yield stack.enter_context(readers)

    run(watched)
    return {p: blocks[p] for p in own if calls[p] == 1 and p not in differing and p not in readers.read}
