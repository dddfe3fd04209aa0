"""Which blocks of a model can be replaced, and what by."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from torch import Tensor, nn

from trainyard.program.repeats.block import tensors_of, trace_block
from trainyard.program.repeats.equal import repeated_blocks
from trainyard.program.repeats.stand_in import Repeats
from trainyard.program.repeats.transcript import Recorder, Transcript
from trainyard.program.running import Watch


def find_repeats(
    module: nn.Module,
    rows: int,
    rng: Tensor,
    state: Mapping[str, Tensor],
    run: Callable[[Watch], Any],
) -> Repeats:
    """Trace one of the repeated blocks of a model, if there are any.

    Parameters
    ----------
    rows : of the batch.
    rng : given to dropout.
    state : fake parameters and buffers by name.
    run : runs the model on them as it will be traced, within the context that it is given; returns what it computes.
    """
    blocks = repeated_blocks(module)
    if not blocks:
        return Repeats({}, None)
    calls = _most_alike(_replaceable(blocks, state, run))
    if not calls:
        return Repeats({}, None)
    path, first = next(iter(calls.items()))
    alone = Recorder({})
    traced = trace_block(blocks[path], first.call, rng, rows, _watching({path: blocks[path]}, alone))
    # What is around a call in the model, such as autocast, is not around the one that is traced.
    if traced is None or [call.key for call in alone.calls[path]] != [first.key]:
        return Repeats({}, None)
    return Repeats({path: blocks[path] for path in calls}, traced)


def _most_alike(calls: Mapping[str, Transcript]) -> dict[str, Transcript]:
    """Of the calls on something that has a gradient, as the batch has none, as many as there are that do the same."""
    groups: list[dict[str, Transcript]] = []
    for path, call in calls.items():
        if not any(t.requires_grad for t in call.call.given):
            continue
        alike = next((g for g in groups if next(iter(g.values())).key == call.key), None)
        if alike is None:
            groups.append(alike := {})
        alike[path] = call
    return max(groups, key=len, default={})


def _watching(blocks: Mapping[str, nn.Module], recorder: Recorder) -> Watch:
    """A context within which the calls of blocks are recorded."""

    @contextmanager
    def watch(mode: Any) -> Iterator[None]:
        with ExitStack() as stack:
            for path, block in blocks.items():
                stack.enter_context(patch.object(block, "forward", recorder.watched(path, block, mode)))
            yield stack.enter_context(recorder)

    return watch


def _replaceable(
    blocks: Mapping[str, nn.Module], state: Mapping[str, Tensor], run: Callable[[Watch], Any]
) -> dict[str, Transcript]:
    """The calls of blocks that are called once, have their own parameters, and share only what they return."""
    own = {
        path: [state.get(f"{path}.{name}") for name, _ in (*block.named_parameters(), *block.named_buffers())]
        for path, block in blocks.items()
    }
    recorder = Recorder({t: path for path, tensors in own.items() for t in tensors if t is not None})
    recorder.used(tensors_of(run(_watching(blocks, recorder))))
    if recorder.differentiates:
        return {}

    def is_closed(path: str, call: Transcript) -> bool:
        known = zip(call.call.state, own[path], strict=False)
        return call.is_closed and path not in recorder.opened and all(used is given for used, given in known)

    return {
        path: calls[0]
        for path, calls in recorder.calls.items()
        if len(calls) == 1 and is_closed(path, calls[0])
    }
